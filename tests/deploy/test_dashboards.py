"""Every panel queries existing metrics, and a live Prometheus can evaluate it."""

import json
import re
from typing import Any

import promql_parser
import pytest
from prometheus_client.metrics import MetricWrapperBase

from deploy.generate import CHART
from gateway import metrics
from gateway.errors import ServiceError
from gateway.plugins import installed, metrics_of
from tests.deploy.prometheus import expression
from tests.deploy.test_alerts import RULES

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


def labels(selector: promql_parser.VectorSelector) -> set[str]:
    """The labels that a selector asks for."""
    return {matcher.name for matcher in selector.matchers.matchers}


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_panel_queries_existing_metrics(panel):
    for target in panel["targets"]:
        found: list[object] = []
        promql_parser.walk(promql_parser.parse(expression(target["expr"])), found.append)
        selectors = [each for each in found if isinstance(each, promql_parser.VectorSelector)]
        assert selectors
        for selector in selectors:
            assert selector.name in SERIES
            assert labels(selector) <= SERIES[selector.name] | {"namespace"}
            assert "namespace" in labels(selector), "the chosen namespace has no effect"
        legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert legend <= {"instance"}.union(*(SERIES[selector.name] for selector in selectors))
    assert panel["description"].endswith(".")


def test_dashboards_and_alert_use_the_same_error_codes():
    """The codes of all faults of the service that an image can have."""
    assert f'outcome=~"{IMAGE_FAULTS}"' in RULES["GatewayImagesFail"]["expr"]
    expressions = {panel["title"]: queries(panel) for panel in PANELS}
    assert f'outcome=~"{IMAGE_FAULTS}"' in expressions["Failed through the service"][0]
    assert f'outcome!~"ok|{IMAGE_FAULTS}"' in expressions["Share of bad images"][0]


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
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
