"""Attacks by URL cost little and reach nothing, against a gateway without a Triton."""

import pytest

from bench.attack.target import Case, Target
from bench.attack.urls import CASES, OPTIONS
from tests.attack.test_parsers import cheap
from tests.processes import Gateway

pytestmark = pytest.mark.slow

SETTINGS = dict(OPTIONS.settings)


@pytest.mark.parametrize("attack", CASES, ids=lambda attack: attack.name)
def test_attack_is_cheap_and_reaches_nothing(gateway: Gateway, attack: Case):
    with cheap(gateway):
        answer = attack.send(Target("127.0.0.1", gateway.port))
        assert answer.startswith("422 "), answer
