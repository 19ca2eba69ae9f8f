"""Every panel queries existing metrics, and a live Prometheus can evaluate it, and every alert.

The live one scrapes a gateway and a Triton, with clients that send good and bad images.
"""

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import promql_parser
import pytest
from prometheus_client.metrics import MetricWrapperBase

from deploy.generate import CHART
from gateway import metrics
from gateway.errors import ServiceError
from gateway.plugin_loading import installed, metrics_of
from tests.deploy.prometheus import Prometheus, expression, needs_prometheus, promtool, running_prometheus
from tests.deploy.test_alerts import RULES
from tests.photos import photo, unlike_any
from tests.processes import Gateway, wait_for

BOARDS = sorted((CHART / "files" / "dashboards").glob("*.json"))
PANELS = [panel for path in BOARDS for panel in json.loads(path.read_text())["panels"] if panel["type"] != "row"]
IMAGE_FAULTS = "|".join(
    sorted({error.code for error in ServiceError.__subclasses__()} - {"internal_error", "load_failed"})
)
"""The outcomes of images that are faults of the service; the two excluded codes never belong to one image."""
TRITONS = {
    "nv_inference_request_success": {"model"},
    "nv_inference_count": {"model"},
    "nv_inference_exec_count": {"model"},
    "nv_inference_queue_duration_us": {"model"},
    "nv_inference_compute_infer_duration_us": {"model"},
    "nv_inference_pending_request_count": {"model"},
    "nv_cache_num_hits_per_model": {"model"},
    "nv_cache_num_misses_per_model": {"model"},
    "nv_cpu_utilization": set(),
    "nv_cpu_memory_used_bytes": set(),
    "nv_cpu_memory_total_bytes": set(),
    "nv_gpu_utilization": {"gpu_uuid"},
    "nv_gpu_memory_used_bytes": {"gpu_uuid"},
    "nv_gpu_memory_total_bytes": {"gpu_uuid"},
}
"""Triton's own metrics that panels use, with their labels."""
BRINGS = {"histogram": ("_bucket", "_count", "_sum"), "counter": ("_total",)}
SERIES = {
    **TRITONS,
    **{
        f"{metric._name}{suffix}": {*metric._labelnames, *(["le"] if suffix == "_bucket" else [])}
        for module in (metrics, *metrics_of(installed()))
        for metric in vars(module).values()
        if isinstance(metric, MetricWrapperBase)
        for suffix in BRINGS.get(metric._type, ("",))
    },
}


def queries(panel: dict[str, Any]) -> list[str]:
    """The expressions of a panel."""
    return [target["expr"] for target in panel["targets"]]


def selectors(expression: str) -> list[Any]:
    """The series that an expression selects; raises ValueError if it is not PromQL."""
    found: list[Any] = []
    promql_parser.walk(promql_parser.parse(expression), found.append)
    return [each for each in found if isinstance(each, promql_parser.VectorSelector)]


def labels(selector: promql_parser.VectorSelector) -> set[str]:
    """The labels that a selector asks for."""
    return {matcher.name for matcher in selector.matchers.matchers}


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_panel_queries_existing_metrics(panel):
    for target in panel["targets"]:
        selected = selectors(expression(target["expr"]))
        assert selected
        for selector in selected:
            assert selector.name in SERIES
            assert labels(selector) <= SERIES[selector.name] | {"namespace"}
            assert "namespace" in labels(selector), "the chosen namespace has no effect"
        legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert legend <= {"instance"}.union(*(SERIES[selector.name] for selector in selected))
    assert panel["description"].endswith(".")


def test_dashboards_and_alert_use_the_same_error_codes():
    """The codes of all faults of the service that an image can have."""
    assert f'outcome=~"{IMAGE_FAULTS}"' in RULES["GatewayImagesFail"]["expr"]
    expressions = {panel["title"]: queries(panel) for panel in PANELS}
    assert f'outcome=~"{IMAGE_FAULTS}"' in expressions["Failed through the service"][0]
    no_bad_files = f'outcome!~"ok|internal_error|rate_limited|{IMAGE_FAULTS}"'
    assert no_bad_files in expressions["Share of bad images"][0]
    assert no_bad_files in RULES["GatewayBadImages"]["expr"]


MAY_LACK_DATA = re.compile(
    r"nv_gpu_|gateway_(drift|shadow|key|rate_store|prediction_log|streams_stopped|decoders_lost|decode_cpu)_"
    r'|gateway_models?_(lookups|loads|load_duration|evictions|memory)_|code!=""'
)
"""Series that a service without a GPU, a fault, or the feature that they count does not have."""


@pytest.fixture(scope="module")
def gateway(light_triton, start_gateway) -> Iterator[Gateway]:
    with start_gateway(triton_url=light_triton.url) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def prometheus(light_triton, gateway, tmp_path_factory) -> Iterator[Prometheus]:
    port = next(each for each in light_triton._arguments() if each.startswith("--metrics-port=")).partition("=")[2]
    targets = {"gateway": gateway.url.removeprefix("http://"), "triton": f"127.0.0.1:{port}"}
    with running_prometheus(tmp_path_factory.mktemp("prometheus"), targets) as prometheus:
        yield prometheus


@needs_prometheus
def test_every_panel_can_be_evaluated_and_has_the_data_that_it_should(gateway, prometheus):
    texts = [query for panel in PANELS for query in queries(panel)]
    for text in texts:
        prometheus.ask(expression(text))
    missing = {expression(text) for text in texts if not MAY_LACK_DATA.search(text)}
    deadline = time.monotonic() + 90
    cached = photo("cat")
    with gateway.client() as http:
        while missing and time.monotonic() < deadline:
            good = [("f", ("a.jpg", unlike_any(photo("coffee")))) for _ in range(6)]
            assert http.post("/predict", files=[*good, ("f", ("b.txt", b"no image"))]).status_code == 200
            assert http.post("/predict", files={"f": ("c.jpg", cached)}).status_code == 200
            missing = {text for text in missing if not prometheus.has(text)}
    assert not missing


@needs_prometheus
def test_every_alert_can_be_evaluated_and_none_fires_without_a_fault(prometheus):
    wait_for(lambda: all(rule["health"] != "unknown" for rule in prometheus.rules()))
    rules = prometheus.rules()
    assert rules
    assert {rule["name"]: rule["health"] for rule in rules} == {rule["name"]: "ok" for rule in rules}
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []


@needs_prometheus
def test_promtool_accepts_the_metrics(gateway):
    promtool("check", "metrics", given=httpx.get(f"{gateway.url}/metrics", timeout=10).text)
