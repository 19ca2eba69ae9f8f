"""`gateway up --detach`, and the commands for a service that runs."""

import os
import re
import signal

import httpx
import psutil
import pytest

from gateway.machine.service_record import ServiceRecord, running
from tests.commands import gateway, refusal
from tests.photos import photo
from tests.processes import environment, free_port, is_gone, python

pytestmark = [pytest.mark.triton, pytest.mark.slow]


def test_detached_service_is_shown_reloaded_and_stopped(light_repository, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, value in {"XDG_STATE_HOME": str(tmp_path / "state"), **environment()}.items():
        monkeypatch.setenv(name, value)
    port, variables = free_port(), tmp_path / ".env"
    assert "no service runs" in gateway("status", code=3).output
    options = (f"--model-repository={light_repository}", f"--port={port}", "--detach")
    started = python("-m", "gateway", "up", *options, cwd=tmp_path)
    assert f"serving on http://127.0.0.1:{port}\n" in started.stdout
    assert "+-----" not in started.stdout + started.stderr  # Triton's tables are in the log
    shown = gateway("status").output
    found = re.search(rf"http://127.0.0.1:{port}  ready  gateway up, process (\d+), since", shown)
    assert found
    assert "ensemble_model version 1" in shown
    process = psutil.Process(int(found[1]))
    family = [process, *process.children(recursive=True)]
    try:
        variables.write_text("GATEWAY_DEFAULT_TOP_K=1\n")
        gateway("reload")
        answer = httpx.post(f"http://127.0.0.1:{port}/predict", files={"f": photo("cat")}, timeout=60)
        assert len(answer.json()["results"][0]["predictions"]) == 1
        variables.write_text("GATEWAY_TRITON_CACHE_BYTES=1000000\n")
        assert "GATEWAY_TRITON_CACHE_BYTES concerns Triton, and needs a restart" in refusal("reload")
        variables.write_text("GATEWAY_WORKERS=none\n")
        assert "GATEWAY_WORKERS='none' in .env" in refusal("reload", f"--port={port}")
        variables.unlink()
        assert "ready" in gateway("status").output
        gateway("stop")
        assert all(map(is_gone, family))
        assert "no service runs" in gateway("status", code=3).output
    finally:
        for each in family:
            if each.is_running():
                os.kill(each.pid, signal.SIGKILL)


def test_records_of_ended_processes_are_ignored(tmp_path, monkeypatch):
    """Also if another process has the id now."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    record = ServiceRecord(8080, command="up")
    assert [each["port"] for each in running()] == [8080]
    record.update(began="an earlier start")
    assert not list(running())
    assert not list(tmp_path.glob("*/service-*"))
