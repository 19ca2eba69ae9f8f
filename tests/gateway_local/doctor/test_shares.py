"""What `gateway doctor` says of the versions that a split or a shadow names."""

import asyncio

import pytest

from gateway.findings import Finding, Level
from gateway_local.doctor import tritons
from gateway_local.doctor.shares import shares
from tests.doubles.triton import FakeEndpoint, FakeTriton
from tests.settings import Settings

SPLIT, SHADOW = {"flowers": {"1": 90, "2": 10}}, {"flowers": {"3": 10}}


def found(*there: str, **settings: object) -> list[Finding]:
    return list(shares(Settings(_env_file=None, **settings), lambda name, version: f"{name}:{version}" in there))


def test_no_finding_without_split_or_shadow():
    assert found() == []


def test_existing_versions_are_listed_with_their_shares():
    split, shadow = found("flowers:1", "flowers:2", "flowers:3", model_split=SPLIT, model_shadow=SHADOW)
    assert (split.level, split.text) == (Level.OK, "flowers: 90 version 1, 10 version 2")
    assert (shadow.level, shadow.text) == (Level.OK, "receives flowers: 10 % version 3")


def test_split_with_missing_version_fails():
    (split,) = found("flowers:1", model_split=SPLIT)
    assert split.level is Level.FAIL
    assert split.text.startswith("flowers has no version 2, so its share of the requests is answered with 503")
    assert "GATEWAY_MODEL_SPLIT" in split.advice


def test_missing_shadow_version_is_a_warning():
    (shadow,) = found("flowers:1", model_shadow=SHADOW)
    assert shadow.level is Level.WARN
    assert "flowers has no version 3" in shadow.text


@pytest.mark.parametrize(("version", "level"), [("2", Level.OK), ("3", Level.WARN)])
def test_remote_triton_is_checked_by_its_own_index(version, level):
    steps = ("preprocessor", "net")
    triton = FakeTriton(ensembles={"ensemble_model": steps, "flowers": steps, "flowers.v2": steps})
    settings = Settings(_env_file=None, model_shadow={"flowers": {version: 10}})
    findings = asyncio.run(tritons.check_endpoint(FakeEndpoint("10.0.0.1:8001", triton), settings))
    assert {finding.check: finding.level for finding in findings}["shadow"] is level
