"""Failures of a real Triton are detected and recovered without an operator."""

import os
import signal
import time
from contextlib import ExitStack

import pytest

from tests.light_models import starting_waits
from tests.load import Load
from tests.processes import wait_for
from tests.reliability.conftest import all_ready, classify, endpoints, ready, urls_of
from tests.tritons import stub_processes

pytestmark = [pytest.mark.triton, pytest.mark.slow]


def test_killed_process_under_load_is_recovered(light_triton, light_repository, start_gateway):
    triton = light_triton
    with start_gateway(triton_url=triton.url) as gateway, Load(gateway.url) as load:
        wait_for(lambda: load.outcomes()[200] > 20)
        with starting_waits(light_repository):
            for process in stub_processes(triton, "preprocessor"):
                process.kill()
            killed_at = time.monotonic()
            wait_for(lambda: not ready(gateway))
            wait_for(lambda: load.outcomes(since=killed_at)[503] > 0)
            problem = classify(gateway)
        wait_for(lambda: ready(gateway))
        healed_at = time.monotonic()
        wait_for(lambda: load.outcomes(since=healed_at)[200] > 20)
    assert set(load.outcomes()) == {200, 503}  # no 500, nothing hangs
    assert set(load.outcomes(since=healed_at)) == {200}
    assert (problem.status_code, problem.json()["code"]) == (503, "model_unavailable")
    assert int(problem.headers["Retry-After"]) > 0


def test_only_one_of_several_gateways_recovers_a_model(light_triton, light_repository, start_gateway, monkeypatch):
    log: list[str] = []
    triton = light_triton
    monkeypatch.setattr(triton, "_on_log", log.append)
    with (
        start_gateway(triton_url=triton.url, workers=2) as first,
        start_gateway(triton_url=triton.url) as second,
        Load(first.url, clients=4) as load,
        Load(second.url, clients=4) as other_load,
    ):
        wait_for(lambda: load.outcomes()[200] > 20 and other_load.outcomes()[200] > 20)
        with starting_waits(light_repository):
            for process in stub_processes(triton, "classifier"):
                process.kill()
            log.clear()
            wait_for(lambda: not ready(first) and not ready(second))
        wait_for(lambda: ready(first) and ready(second))
        healed_at = time.monotonic()
        wait_for(lambda: load.outcomes(since=healed_at)[200] > 20)
        wait_for(lambda: other_load.outcomes(since=healed_at)[200] > 20)
    assert sum("loading: classifier:1" in line for line in log) == 1, log


def test_gateway_started_before_triton_becomes_ready_with_it(start_triton, light_repository, start_gateway):
    with ExitStack() as running:
        with starting_waits(light_repository):
            triton = start_triton()
            gateway = running.enter_context(start_gateway(triton_url=triton.url, wait_ready=False))
            assert not ready(gateway)
            assert classify(gateway, b"\x42").status_code == 415  # an error that needs no Triton
        wait_for(lambda: ready(gateway))


def test_no_request_fails_when_one_of_two_tritons_dies(two_tritons, start_gateway):
    lost, _ = two_tritons
    with (
        start_gateway(triton_url=urls_of(two_tritons), ready_interval_seconds=1) as gateway,
        Load(gateway.url) as load,
    ):
        wait_for(lambda: load.outcomes()[200] > 40)
        os.kill(lost.pid, signal.SIGKILL)
        killed_at = time.monotonic()
        wait_for(lambda: load.outcomes(since=killed_at)[200] > 100)
        wait_for(lambda: sorted(endpoint["ready"] for endpoint in endpoints(gateway)) == [False, True])
        lost.stop()
        lost.start()
        wait_for(lambda: all_ready(gateway))
    assert set(load.outcomes()) == {200}
