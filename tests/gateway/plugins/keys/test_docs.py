"""The guide to keys says what the code does."""

import re

import pytest

from gateway.limits.caller import REFUSAL_SECONDS
from gateway.plugins.keys import rates, tenant
from gateway.plugins.keys.key_file import read_keys
from gateway.plugins.keys.quota import Priority
from tests.processes import PROJECT

GUIDE = (PROJECT / "docs" / "guides" / "keys.md").read_text()


def test_lines_of_the_key_file_can_be_read(tmp_path):
    lines = re.findall(r"^\w+:[0-9a-f]{64}.*$", GUIDE, re.MULTILINE)
    (tmp_path / "keys").write_text("\n".join(lines))
    assert list(read_keys(tmp_path / "keys").quotas) == ["nightly"]


def test_command_of_the_guide_makes_the_quota_of_the_file():
    assert f" {re.search(r'gateway key add nightly (.+)', GUIDE)[1]}\n```" in GUIDE


def test_figures_are_those_of_the_code():
    assert f"({1:g} for {Priority.INTERACTIVE}, {tenant.BULK_WEIGHT:g} for {Priority.BULK})" in GUIDE
    assert REFUSAL_SECONDS == 1
    assert "after a pause of one second" in GUIDE
    assert f"takes at most {rates.TIMEOUT_SECONDS:g} s" in GUIDE
    assert rates.RETRY_SECONDS == 1


@pytest.mark.parametrize("name", ["gateway_rate_store_up", "gateway_key_images_total", "gateway_key_refusals_total"])
def test_metrics_of_the_guide_exist(name):
    assert name in GUIDE
    assert name in (PROJECT / "docs" / "reference" / "metrics.md").read_text()
