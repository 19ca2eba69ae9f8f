"""The documents of operators, the alerts and the reference pages match the metrics, the log and the settings."""

import re
import runpy

import pytest
import structlog

from gateway import errors
from gateway.plugins.keys.key_file import add_key
from tests.deploy.test_alerts import RULES as BY_NAME
from tests.deploy.test_dashboards import SERIES, selectors
from tests.doubles.backend import PNG, StubBackend
from tests.processes import PROJECT
from tests.services import client_of

METRICS_PAGE, LOG_PAGE, ALERTS_PAGE, *OTHER_PAGES = (
    (PROJECT / "docs" / page).read_text()
    for page in (
        "reference/metrics.md",
        "reference/log.md",
        "guides/alerts.md",
        "guides/monitoring.md",
        "guides/rollouts.md",
        "guides/sizing.md",
    )
)
TEXT = "\n".join((METRICS_PAGE, LOG_PAGE, ALERTS_PAGE, *OTHER_PAGES))
TABLES = runpy.run_path(str(PROJECT / "docs" / "tables.py"))
RULES = list(BY_NAME.values())


def rows(text: str, first: str) -> list[list[str]]:
    """The rows of the table whose first column has this heading."""
    table = re.search(rf"^\| {first} \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)[1]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def codes(root: type[errors.GatewayError] = errors.GatewayError) -> set[str]:
    return {root.code}.union(*(codes(error) for error in root.__subclasses__()))


def test_log_field_table_matches_the_code(tmp_path):
    fault = errors.TritonUnreachable()
    fault.__cause__ = OSError("away")
    key = add_key(tmp_path / "keys", "mobile")
    headers = {"X-API-Key": key, "traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    left = iter([{"type": "http.request", "body": PNG[:9], "more_body": True}, {"type": "http.disconnect"}])
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as captured:
        for backend in (StubBackend(), StubBackend(fault)):
            with client_of(backend, api_keys_file=tmp_path / "keys") as client:
                client.post("/predict", files={"f": ("a.png", PNG)}, headers=headers)
        with client_of() as client:
            client.ask("POST", "/predict", [(b"content-type", b"image/png")], body=lambda _: next(left))
    logged = {name for event in captured if event["event"] == "request" for name in event} - {"log_level"}
    told = {name for row in rows(LOG_PAGE, "field") for name in re.findall(r"\w+", row[0])}
    assert told == logged | {"timestamp", "level", "protocol"}  # the last over gRPC


def test_event_table_has_every_event():
    packages = [PROJECT / "gateway", PROJECT / "gateway_models" / "predictions"]
    sources = [path.read_text() for package in packages for path in package.rglob("*.py")]
    known = {
        name
        for source in sources
        for name in re.findall(r'(?:\b(?:log\.\w+|level|self\._failed|self\._report)\(\s*|"event": )"(\w+)"', source)
    }
    told = {row[0].strip("`") for row in rows(LOG_PAGE, "event")}
    assert told | {"request"} == known


def test_every_alert_has_one_explanation():
    assert re.findall(r"^## (\w+)\n\n\S", ALERTS_PAGE, re.MULTILINE) == [rule["alert"] for rule in RULES]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_expressions_use_existing_metrics(rule):
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert rule["annotations"]["summary"].endswith(".")
    assert rule["annotations"]["runbook_url"] == f"docs/guides/alerts.md#{rule['alert'].lower()}"
    assert selectors(rule["expr"])
    for selector in selectors(rule["expr"]):
        for matcher in selector.matchers.matchers:
            assert matcher.name in SERIES[selector.name]
            if matcher.name == "code" or (matcher.name == "outcome" and selector.name == "gateway_images_total"):
                assert set(matcher.value.split("|")) <= codes() | {"ok"}


@pytest.mark.parametrize("expression", re.findall(r"```promql\n(\(?sum.*?)\n```", TEXT, re.DOTALL))
def test_documented_expressions_use_existing_metrics(expression):
    assert {selector.name for selector in selectors(expression)} <= set(SERIES)


@pytest.mark.parametrize("name", TABLES["TABLES"])
def test_reference_table_matches_code(name):
    page = TABLES["page_of"](name).read_text()
    assert TABLES["with_table"](name, page) == page, "run: make docs"
