"""Every panel asks for what there is, and a live Prometheus has an answer."""

import json
import re
import time
from collections.abc import Iterator

import httpx
import promql_parser
import pytest
from prometheus_client.metrics import MetricWrapperBase

from deploy.generate import CHART
from deploy.generate.dashboards import BOARDS
from deploy.generate.panels import Panel
from gateway import metrics
from tests.deploy.prometheus import Prometheus, expression, needs_prometheus, promtool, running_prometheus
from tests.photos import photo, unlike_any
from tests.processes import Gateway, running_gateway

PANELS = [panel for board in BOARDS for row in board.rows for panel in row.panels]
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
        for metric in vars(metrics).values()
        if isinstance(metric, MetricWrapperBase)
        for suffix in BRINGS.get(metric._type, ("",))
    },
}


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_a_panel_asks_for_what_there_is(panel: Panel):
    for query in panel.queries:
        found: list[object] = []
        promql_parser.walk(promql_parser.parse(expression(query)), found.append)
        selectors = [each for each in found if isinstance(each, promql_parser.VectorSelector)]
        assert selectors
        for selector in selectors:
            assert selector.name in SERIES
            asked = {matcher.name for matcher in selector.matchers.matchers}
            assert asked <= SERIES[selector.name] | {"namespace"}
        legend = set(re.findall(r"\{\{(\w+)\}\}", query.legend))
        assert legend <= {"instance"}.union(*(SERIES[selector.name] for selector in selectors))
    assert panel.meaning.endswith(".")


@pytest.mark.parametrize("path", sorted((CHART / "files" / "dashboards").glob("*.json")), ids=lambda path: path.stem)
def test_a_dashboard_can_be_provisioned(path):
    board = json.loads(path.read_text())
    assert re.fullmatch(r"[a-z-]{1,40}", board["uid"])
    variables = {each["name"] for each in board["templating"]["list"]}
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert panels
    taken = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, f"{panel['title']} lies on another"
        taken |= cells
        for target in panel["targets"]:
            names = set(re.findall(r"\$\{?(\w+)", target["expr"]))
            assert names <= variables | {"__rate_interval", "__range"}
        assert panel["datasource"]["uid"] == "${datasource}"


@pytest.mark.triton
@needs_prometheus
class TestLive:
    """One gateway, one Triton, one Prometheus, and some clients with good and bad images."""

    @pytest.fixture(scope="class")
    def gateway(self, triton, tmp_path_factory) -> Iterator[Gateway]:
        with running_gateway(tmp_path_factory.mktemp("gateway") / "log", triton_url=triton.url) as gateway:
            yield gateway

    @pytest.fixture(scope="class")
    def prometheus(self, triton, gateway, tmp_path_factory) -> Iterator[Prometheus]:
        port = next(each for each in triton._arguments() if each.startswith("--metrics-port=")).partition("=")[2]
        targets = {"gateway": gateway.url.removeprefix("http://"), "triton": f"127.0.0.1:{port}"}
        with running_prometheus(tmp_path_factory.mktemp("prometheus"), targets) as prometheus:
            yield prometheus

    def test_every_panel_that_should_have_data_has_some(self, gateway, prometheus):
        missing = {expression(query) for panel in PANELS for query in panel.queries if not query.quiet}
        deadline = time.monotonic() + 90
        cached = photo("cat")
        with gateway.client() as http:
            while missing and time.monotonic() < deadline:
                good = [("f", ("a.jpg", unlike_any(photo("coffee")))) for _ in range(6)]
                assert http.post("/predict", files=[*good, ("f", ("b.txt", b"no image"))]).status_code == 200
                assert http.post("/predict", files={"f": ("c.jpg", cached)}).status_code == 200
                missing = {text for text in missing if not prometheus.has(text)}
        assert not missing

    def test_every_panel_can_be_evaluated(self, prometheus):
        for panel in PANELS:
            for query in panel.queries:
                prometheus.ask(expression(query))

    def test_every_alert_can_be_evaluated_and_none_fires_while_all_is_well(self, prometheus):
        rules = prometheus.rules()
        assert rules
        assert {(rule["name"], rule["health"]) for rule in rules} == {(rule["name"], "ok") for rule in rules}
        assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []

    def test_promtool_likes_the_metrics(self, gateway):
        promtool("check", "metrics", given=httpx.get(f"{gateway.url}/metrics", timeout=10).text)
