"""Attacks by URL cost little and reach nothing, against a gateway without a Triton."""

from collections.abc import Iterator

import pytest

from bench.attack.target import Attack, Target
from bench.attack.urls import ATTACKS, OPTIONS
from tests.attack.test_parsers import cheap
from tests.doubles.program import PROGRAM
from tests.processes import Gateway, running_gateway

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    log = tmp_path_factory.mktemp("urls") / "log"
    with running_gateway(log, program=PROGRAM, **dict(OPTIONS.settings)) as running:
        yield running


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_attack_is_cheap_and_reaches_nothing(gateway: Gateway, attack: Attack):
    with cheap(gateway):
        answer = attack.send(Target("127.0.0.1", gateway.port))
        assert answer.startswith("422 "), answer
