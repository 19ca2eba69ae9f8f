"""`gateway up`: one command that starts everything, keeps it running, and leaves nothing behind."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from tests.photos import photo
from tests.processes import PROJECT, environment, free_port, wait_for
from tests.reliability.conftest import Load

pytestmark = [pytest.mark.triton, pytest.mark.slow]


@dataclass
class Up:
    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def triton(self) -> psutil.Process:
        return next(process for process in self.family() if process.name() == "tritonserver")

    def says(self, pattern: str) -> bool:
        return re.search(pattern, self.log.read_text()) is not None


@contextlib.contextmanager
def running_up(log: Path, **settings: object) -> Iterator[Up]:
    port = free_port()
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "up"],
            env=environment(port=port, ready_interval_seconds=1, **settings),
            cwd=PROJECT,
            stdout=output,
            stderr=output,
        )
    up = Up(process, f"http://127.0.0.1:{port}", log)
    try:
        wait_for(lambda: up.says("gateway \\| ready after"), process=process, timeout_seconds=120)
        yield up
    finally:
        process.kill()
        process.wait()


def classified(up: Up) -> bool:
    try:
        return httpx.post(f"{up.url}/predict", files={"f": ("c.jpg", photo("cat"))}, timeout=30).status_code == 200
    except httpx.TransportError:
        return False


def test_up_says_what_it_does_and_leaves_no_process_behind(model_repository, tmp_path):
    with running_up(tmp_path / "up.log") as up:
        assert classified(up)
        family = up.family()
        assert len(family) >= 4
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(60) == 0
        assert not psutil.wait_procs(family, timeout=5)[1]
        for step in (
            "starting Triton",
            r"Triton is ready after [\d.]+ s",
            r"ready after [\d.]+ s: open http",
            "stopped",
        ):
            assert up.says(step), step


def test_a_second_up_beside_the_first_names_the_port(model_repository, tmp_path):
    with running_up(tmp_path / "up.log") as up:
        port = up.url.rpartition(":")[2]
        second = subprocess.run(
            [sys.executable, "-m", "gateway", "up", "--port", port],
            env=environment(),
            cwd=PROJECT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert second.returncode == 1
        assert f"port {port}" in second.stderr
        assert classified(up)


def test_nothing_outlives_an_up_that_is_killed(model_repository, tmp_path):
    with running_up(tmp_path / "up.log") as up:
        family = up.family()
        up.process.kill()
        assert not psutil.wait_procs(family, timeout=20)[1]


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_a_triton_that_dies_or_hangs_is_started_again(model_repository, tmp_path, blow):
    with running_up(tmp_path / "up.log") as up:
        first = up.triton()
        first.send_signal(blow)
        wait_for(lambda: up.says("starting it again"), timeout_seconds=40)
        wait_for(lambda: up.says("Triton is ready again"), timeout_seconds=90)
        wait_for(lambda: classified(up))
        assert up.triton().pid != first.pid
        up.process.terminate()
        assert up.process.wait(60) == 0


def test_a_stop_under_load_loses_nothing(model_repository, tmp_path):
    with running_up(tmp_path / "up.log", workers=2, shutdown_delay_seconds=1) as up:
        with Load(up.url) as load:
            wait_for(lambda: load.outcomes()[200] > 40)
            os.kill(up.process.pid, signal.SIGTERM)
            stopped_at = time.monotonic()
            assert up.process.wait(60) == 0
        assert load.outcomes(since=stopped_at)[200] > 0
        # In the moment in which the port is closed each client may find its idle connection gone and, knocking anew, be
        # turned away once more; afterwards the door is shut.
        outcomes = load.outcomes()
        assert set(outcomes) <= {200, "ConnectError", "ReadError", "RemoteProtocolError"}
        assert outcomes["ReadError"] + outcomes["RemoteProtocolError"] <= 2 * load.clients
        # Whoever was let in got an answer.
        events = [line for line in up.log.read_text().splitlines() if '"path": "/predict"' in line]
        assert sum('"status": 200' in event for event in events) == len(events) == outcomes[200]
