"""The API as workers of a process, before a Triton that does not answer."""

import os
import signal

import psutil
import pytest

from gateway.server.serve import bound
from gateway_local.api_process import ApiFailed, ApiProcess
from gateway_local.children import is_ok
from gateway_local.hosts import LOOPBACK
from gateway_local.up import api_plan
from tests.processes import free_port, is_gone, wait_for
from tests.settings import Settings


@pytest.fixture
def api():
    started = []

    def start(changed=None, **settings):
        said = []
        given = Settings(_env_file=None, port=free_port(), **settings)
        process = ApiProcess(bound(given), given.model, say=said.append)
        process.start(api_plan(given, {**(changed or {}), "triton_url": "127.0.0.1:9"}))
        started.append(process)
        return process, said

    yield start
    for process in started:
        process.stop(0)


def test_worker_that_ends_while_it_starts_fails_the_start(api):
    process, _ = api({"workers": 0})
    with pytest.raises(ApiFailed, match=r"the API ended with code \d while it started"):
        process.wait_ready(60)


@pytest.mark.slow
def test_worker_that_dies_or_hangs_is_replaced_and_a_late_start_has_its_reason(api, monkeypatch):
    process, said = api(workers=2, shutdown_delay_seconds=100)
    port = process.port
    wait_for(lambda: is_ok(LOOPBACK, port, "/health/live", timeout_seconds=60))
    with pytest.raises(ApiFailed, match=r"not ready after 0.3 s; it reports: .*not ready"):
        process.wait_ready(0.3)
    family = [psutil.Process(pid) for pid in process.pids]
    os.kill(process.pids[0], signal.SIGKILL)
    wait_for(lambda: process.check() or len(said) > 0)
    assert said == ["a worker of the API ended with code -9; starting another one in 0.5 s"]
    wait_for(lambda: process.check() or process.pids[0] != family[0].pid)
    family.append(psutil.Process(process.pids[0]))
    os.kill(process.pids[1], signal.SIGSTOP)
    monkeypatch.setattr("gateway.server.workers.HANG_SECONDS", 0.5)
    wait_for(lambda: process.check() or len(said) > 1)
    assert said[1].startswith("a worker of the API did not answer for 0.5 s; starting another one")
    process.stop(0.1)  # within the shutdown delay
    assert all(map(is_gone, family))
