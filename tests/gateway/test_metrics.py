"""Metrics: named by the conventions, and right for several workers, also when one of them dies."""

import os
import signal
import subprocess
import sys

import httpx
from prometheus_client.parser import text_string_to_metric_families

from gateway import __version__, metrics
from tests.photos import photo, unlike_any
from tests.processes import PROJECT, Gateway, children, environment, running_gateway, wait_for


def sample(text: str, name: str, **labels: str) -> float | None:
    """The value of a series; None where there is none, an error where there are several."""
    values = [
        found.value
        for family in text_string_to_metric_families(text)
        for found in family.samples
        if found.name == name and found.labels.items() >= labels.items()
    ]
    assert len(values) <= 1, values
    return values[0] if values else None


def test_metrics_have_the_version_and_no_creation_times():
    exposed = metrics.exposition().decode()
    assert sample(exposed, "gateway_build_info", version=__version__) == 1
    assert "_created" not in exposed


WORKER = """
import os, signal
from gateway import metrics
metrics.IMAGES_IN_FLIGHT.set(3)
metrics.REQUESTS.labels("/predict", "200", "").inc(5)
metrics.TRITON_READY.labels("a:1").set(0)
metrics.TRITON_READY.labels("b:1").set(0)
metrics.forget(metrics.TRITON_READY, "b:1")
print(metrics.exposition().decode(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_worker_keeps_its_counters_but_not_its_gauges(tmp_path):
    """A Triton that was removed fires no alert."""
    variables = {**environment(), metrics.SHARED_FOLDER: str(tmp_path)}
    for counted in (5, 10):
        command = [sys.executable, "-c", WORKER]
        worker = subprocess.run(command, cwd=PROJECT, env=variables, capture_output=True, text=True, check=False)
        assert worker.returncode == -signal.SIGKILL, worker.stderr
        text = worker.stdout
        assert sample(text, "gateway_images_in_flight") == 3
        assert sample(text, "gateway_requests_total", route="/predict", status="200") == counted
    assert sample(text, "gateway_triton_ready", triton="a:1") == 0
    assert sample(text, "gateway_triton_ready", triton="b:1") not in {0, 1}


def workers(gateway: Gateway) -> set[int]:
    """The process ids of the living workers."""
    return {child.pid for child in children(gateway.process.pid, "gateway.worker")}


def test_metrics_cover_all_workers_after_one_has_died(light_triton, tmp_path):
    answered = {"outcome": "ok", "model": "ensemble_model", "version": "1"}
    with running_gateway(tmp_path / "log", triton_url=light_triton.url, workers=2) as gateway:

        def told(name: str, **labels: str) -> float | None:
            try:
                return sample(httpx.get(f"{gateway.url}/metrics", timeout=60).text, name, **labels)
            except httpx.TransportError:  # it came to the worker that dies
                return None

        wait_for(lambda: told("gateway_images_in_flight_limit") == 64)
        for _ in range(20):
            with gateway.client() as http:  # a new connection, for either worker to take
                assert http.post("/predict", files={"f": ("c.jpg", unlike_any(photo("cat")))}).status_code == 200
        # A request is counted after the last byte of its response has been sent.
        wait_for(lambda: told("gateway_request_duration_seconds_count", stage="total") == 20)
        wait_for(lambda: told("gateway_images_in_flight") == 0)
        assert told("gateway_images_total", **answered) == 20
        assert told("gateway_build_info", version=__version__) == 1

        before = workers(gateway)
        assert len(before) == 2
        os.kill(min(before), signal.SIGKILL)
        wait_for(lambda: len(workers(gateway)) == 2 and workers(gateway) != before)
        wait_for(lambda: told("gateway_images_in_flight_limit") == 64)
        wait_for(lambda: told("gateway_images_total", **answered) == 20)
        wait_for(lambda: told("gateway_triton_ready", triton=light_triton.url) == 1)
