"""The attacks of `make attack` on parsers and by URL, in a small form and without a Triton, cost little."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import psutil
import pytest

from bench.attack import parsers, urls
from bench.attack.target import Case, Target
from tests.doubles.backend import PNG
from tests.gateway_decoder.hostile_headers import heic_of_headers
from tests.processes import Gateway

pytestmark = pytest.mark.slow

SETTINGS = dict(urls.OPTIONS.settings)
NBYTES = 4_000_000
# Five times the promised limits, since other processes may slow the service down.
LONGEST_PAUSE_SECONDS = 0.25
MOST_CPU_SECONDS = 5.0
MOST_BYTES = 150_000_000
HEADERS = Case(
    "heic-of-headers",
    "Headers that are as expensive to read as any may be, as many as fit",
    lambda target: target.post_files([heic_of_headers(10_000, 1)], name="x.heic"),
    folded=True,
)


def ask(gateway: Gateway) -> dict:
    with gateway.client() as http:
        answer: httpx.Response = http.post("/predict", files={"f": ("c.png", PNG)}, params={"top_k": 1})
    return answer.json()["results"][0]


@contextmanager
def cheap(gateway: Gateway) -> Iterator[None]:
    """Assert that what the block sends costs the gateway little, and no other client its answer."""
    usual = ask(gateway)
    process = psutil.Process(gateway.process.pid)
    began, offset = process.cpu_times(), gateway.log.stat().st_size
    resident_bytes = gateway.resident_bytes()
    yield
    assert ask(gateway) == usual
    ended = process.cpu_times()
    assert ended.user + ended.system - began.user - began.system < MOST_CPU_SECONDS
    assert gateway.resident_bytes() - resident_bytes < MOST_BYTES
    pauses = [event["cpu_seconds"] for event in gateway.events(offset) if event["event"] == "loop_paused"]
    assert max(pauses, default=0.0) < LONGEST_PAUSE_SECONDS


@pytest.mark.parametrize("attack", [*parsers.CASES, HEADERS], ids=lambda attack: attack.name)
def test_attack_is_cheap_and_affects_no_other_client(gateway: Gateway, attack: Case):
    with cheap(gateway):
        answer = attack.send(Target("127.0.0.1", gateway.port, NBYTES, folded=attack.folded))
        assert "50" not in answer.split(), answer
        assert not answer.startswith("5"), answer


@pytest.mark.parametrize("attack", urls.CASES, ids=lambda attack: attack.name)
def test_attack_by_url_is_cheap_and_reaches_nothing(gateway: Gateway, attack: Case):
    with cheap(gateway):
        answer = attack.send(Target("127.0.0.1", gateway.port))
        assert answer.startswith("422 "), answer
