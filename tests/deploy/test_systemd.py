"""The systemd unit fits what `gateway up` does."""

import configparser

import pytest

from tests.settings import Settings


@pytest.fixture
def service(root):
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(root / "deploy/systemd/triton-image-gateway.service")
    return unit["Service"]


def test_requests_are_finished_before_systemd_kills(service):
    defaults = Settings.model_fields
    needed = defaults["shutdown_delay_seconds"].default + defaults["shutdown_grace_seconds"].default
    assert int(service["TimeoutStopSec"]) > needed
    # By default every process would get SIGTERM, and Triton would leave before the last answer.
    assert service["KillMode"] == "mixed"


def test_unit_runs_up_unprivileged_and_restarts_it(service):
    assert service["ExecStart"].endswith("gateway up")
    assert service["User"] != "root"
    assert service["NoNewPrivileges"] == "yes"
    assert service["Restart"] == "on-failure"


def test_environment_variables_are_settings(service):
    names = [word.split("=")[0] for word in service["Environment"].split()]
    known = {f"GATEWAY_{field.upper()}" for field in Settings.model_fields}
    assert {name for name in names if name.startswith("GATEWAY_")} <= known
