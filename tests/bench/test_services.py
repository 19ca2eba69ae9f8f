"""Paused services use no processor time, and are ready when they are resumed."""

import sys
from contextlib import ExitStack

import pytest

from bench.candidates import Load, compare, started
from bench.services import Service, ServiceFailed
from bench.services import started as started_service
from gateway_local.hosts import free_port
from tests.processes import wait_for

WORKERS = 2
STOPPED = "stopped"


def service():
    """A small service with two worker processes, which answers as POST /predict does."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "tests.bench.small_service:app", "--workers", str(WORKERS)]
    return started_service([*command, "--port", str(port), "--log-level", "warning"], port, ready="/health")


def states(running: Service) -> set[str]:
    return {process.status() for process in running.tree()}


def test_all_processes_are_paused_and_resumed():
    with service() as running:
        assert len(running.tree()) > WORKERS
        running.pause()
        wait_for(lambda: states(running) == {STOPPED})
        with running.turn():
            assert STOPPED not in states(running)
        wait_for(lambda: states(running) == {STOPPED})
        processes = running.tree()
    assert not any(process.is_running() for process in processes)


@pytest.mark.slow
def test_candidates_are_measured_in_turns():
    with ExitStack() as stack:
        services = {"first": service(), "second": service()}
        running = started(stack, services, lambda _: None, one_file=("second",), warm_up_seconds=0.1)
        loads = [Load("2 in flight", 2), Load("3 files in one request", 1, 3)]
        measured = compare(running, loads, 0.2, 2, lambda _: None)
        for load in loads:
            for name, series in measured[load].items():
                assert len(series) == 2, name
                assert all(each.images and each.cpu_milliseconds("gateway") for each in series), name


def test_log_of_a_service_that_ends_is_in_the_error():
    command = [sys.executable, "-c", "import sys; sys.exit('no model here')"]
    failing = started_service(command, free_port())
    with pytest.raises(ServiceFailed, match=r"(?s)ended with code 1.*no model here"):
        failing.__enter__()
