"""docs/operations.md tells of every metric, and of no other."""

import re

from prometheus_client.metrics import MetricWrapperBase

from gateway import metrics
from tests.processes import PROJECT

PAGE = (PROJECT / "docs" / "operations.md").read_text()


def test_the_table_of_metrics_is_that_of_the_code():
    families = [each.describe()[0] for each in vars(metrics).values() if isinstance(each, MetricWrapperBase)]
    names = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    assert set(re.findall(r"^\| `(gateway_\w+)` \|", PAGE, re.MULTILINE)) == names
    for family in families:
        assert family.documentation in PAGE


def test_alerts_ask_for_metrics_that_there_are():
    told = set(re.findall(r"gateway_[a-z_]+", PAGE.partition("## Alerts")[2]))
    assert told <= set(re.findall(r"`(gateway_\w+)`", PAGE.partition("## Log")[0]))
