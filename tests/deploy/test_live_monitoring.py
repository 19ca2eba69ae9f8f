"""With a gateway, a Triton, a Prometheus, and clients with good and bad images, every query has a result."""

import re
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.deploy.prometheus import Prometheus, expression, needs_prometheus, promtool, running_prometheus
from tests.deploy.test_dashboards import PANELS, queries
from tests.photos import photo, unlike_any
from tests.processes import Gateway, running_gateway, wait_for

MAY_LACK_DATA = re.compile(
    r"nv_gpu_|gateway_(drift|shadow|key|rate_store|prediction_log|streams_stopped|decoders_lost|decode_cpu)_"
    r'|gateway_models?_(lookups|loads|load_duration|evictions|memory)_|code!=""'
)
"""Series that a service without a GPU, a fault, or the feature that they count does not have."""
pytestmark = needs_prometheus


@pytest.fixture(scope="module")
def gateway(light_triton, tmp_path_factory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("gateway") / "log", triton_url=light_triton.url) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def prometheus(light_triton, gateway, tmp_path_factory) -> Iterator[Prometheus]:
    port = next(each for each in light_triton._arguments() if each.startswith("--metrics-port=")).partition("=")[2]
    targets = {"gateway": gateway.url.removeprefix("http://"), "triton": f"127.0.0.1:{port}"}
    with running_prometheus(tmp_path_factory.mktemp("prometheus"), targets) as prometheus:
        yield prometheus


def test_every_panel_that_should_have_data_has_some(gateway, prometheus):
    missing = {expression(query) for panel in PANELS for query in queries(panel) if not MAY_LACK_DATA.search(query)}
    deadline = time.monotonic() + 90
    cached = photo("cat")
    with gateway.client() as http:
        while missing and time.monotonic() < deadline:
            good = [("f", ("a.jpg", unlike_any(photo("coffee")))) for _ in range(6)]
            assert http.post("/predict", files=[*good, ("f", ("b.txt", b"no image"))]).status_code == 200
            assert http.post("/predict", files={"f": ("c.jpg", cached)}).status_code == 200
            missing = {text for text in missing if not prometheus.has(text)}
    assert not missing


def test_every_panel_can_be_evaluated(prometheus):
    for panel in PANELS:
        for query in queries(panel):
            prometheus.ask(expression(query))


def test_every_alert_can_be_evaluated_and_none_fires_without_a_fault(prometheus):
    wait_for(lambda: all(rule["health"] != "unknown" for rule in prometheus.rules()))
    rules = prometheus.rules()
    assert rules
    assert {rule["name"]: rule["health"] for rule in rules} == {rule["name"]: "ok" for rule in rules}
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []


def test_promtool_accepts_the_metrics(gateway):
    promtool("check", "metrics", given=httpx.get(f"{gateway.url}/metrics", timeout=10).text)
