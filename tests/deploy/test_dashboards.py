"""Every panel queries existing metrics, and a live Prometheus can evaluate it."""

import json
import re

import promql_parser
import pytest
from prometheus_client.metrics import MetricWrapperBase

from deploy.generate import CHART
from deploy.generate.dashboards import BOARDS
from deploy.generate.panels import IMAGE_FAULTS, Panel
from gateway import metrics
from gateway.plugins import installed, metrics_of
from tests.deploy.prometheus import expression
from tests.deploy.test_alerts import RULES

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
        for module in (metrics, *metrics_of(installed()))
        for metric in vars(module).values()
        if isinstance(metric, MetricWrapperBase)
        for suffix in BRINGS.get(metric._type, ("",))
    },
}


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_panel_queries_existing_metrics(panel: Panel):
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


def test_dashboards_and_alert_use_the_same_error_codes():
    assert f'outcome=~"{IMAGE_FAULTS}"' in RULES["GatewayImagesFail"]["expr"]


@pytest.mark.parametrize("path", sorted((CHART / "files" / "dashboards").glob("*.json")), ids=lambda path: path.stem)
def test_dashboard_can_be_provisioned(path):
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
