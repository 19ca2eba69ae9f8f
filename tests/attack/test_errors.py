"""Errors of clients are never answered by a 5xx status or a close code of a fault, and log no error."""

import json
from collections.abc import Iterator

import pytest

from bench.attack import errors
from bench.attack.target import Attack, Target
from tests.processes import Gateway, running_gateway
from tests.stub_server import COMMAND

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("errors") / "log", command=COMMAND) as running:
        yield running


@pytest.mark.parametrize("attack", errors.ATTACKS, ids=lambda attack: attack.name)
def test_client_errors_are_not_faults(gateway: Gateway, attack: Attack):
    """Each attack raises PromiseBroken for an answer that says that the service is at fault."""
    offset = gateway.log.stat().st_size
    attack.send(Target("127.0.0.1", int(gateway.url.rpartition(":")[2])))
    lines = gateway.log.read_bytes()[offset:].splitlines()
    events = [json.loads(line) for line in lines if line.startswith(b"{")]
    assert [event for event in events if event["level"] in ("error", "critical")] == []
