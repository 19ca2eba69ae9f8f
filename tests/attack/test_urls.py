"""Attacks by URL cost little and reach nothing, against a gateway without a Triton."""

from collections.abc import Iterator

import psutil
import pytest

from bench.attack.target import Attack, Target
from bench.attack.urls import ATTACKS, OPTIONS
from tests.attack.test_parsers import LONGEST_PAUSE_SECONDS, MOST_BYTES, MOST_CPU_SECONDS, ask
from tests.processes import Gateway, running_gateway
from tests.stub_server import PROGRAM

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    log = tmp_path_factory.mktemp("urls") / "log"
    with running_gateway(log, program=PROGRAM, **dict(OPTIONS.settings)) as running:
        yield running


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_attack_is_cheap_and_reaches_nothing(gateway: Gateway, attack: Attack):
    usual = ask(gateway)
    process = psutil.Process(gateway.process.pid)
    began, offset = process.cpu_times(), gateway.log.stat().st_size
    resident_bytes = gateway.resident_bytes()
    answer = attack.send(Target("127.0.0.1", gateway.port))
    assert answer.startswith("422 "), answer
    assert ask(gateway) == usual
    ended = process.cpu_times()
    assert ended.user + ended.system - began.user - began.system < MOST_CPU_SECONDS
    assert gateway.resident_bytes() - resident_bytes < MOST_BYTES
    pauses = [event["cpu_seconds"] for event in gateway.events(offset) if event["event"] == "loop_paused"]
    assert max(pauses, default=0.0) < LONGEST_PAUSE_SECONDS
