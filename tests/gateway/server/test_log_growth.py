"""What a worker logs: pauses of its event loop, and no more than its clients send."""

import asyncio
import json
import re
import time
from collections.abc import Iterator

import pytest
import structlog
from prometheus_client import REGISTRY

from gateway.server.heartbeat import BUSY_SECONDS, LONG_SECONDS, QUIET_SECONDS, WINDOW_SECONDS, Pauses, heartbeat
from tests.doubles.program import PROGRAM
from tests.fuzz.streams import request
from tests.gateway.server.raw import exchange
from tests.gateway.triton.fleet import wait_until
from tests.processes import Gateway, running_gateway, wait_for

TIMES = 50
STREAM = request(query=b"?smoothing=none").decode()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("log") / "log", program=PROGRAM) as running:
        yield running


@pytest.mark.parametrize(
    ("sent", "resets"),
    [
        ("GET /x HTTP/1.1\r\n\r\n", False),
        ("HEAD /x HTTP/1.1\r\n\r\n", False),
        ("HEAD /" + 300 * "%07" + " HTTP/1.1\r\n\r\n", False),
        ("HEAD /" + 100 * "%C3%A9" + " HTTP/1.1\r\n\r\n", False),
        ("?\r\n\r\n", False),
        (STREAM, True),
        (STREAM.replace("==", "") + 100 * "x", False),
        (STREAM + "\0\0", False),
    ],
    ids=["not found", "HEAD", "control characters", "accents", "no HTTP", "reset", "bad handshake", "bad frame"],
)
def test_log_grows_no_faster_than_the_traffic(gateway: Gateway, sent: str, resets: bool):
    before = gateway.log.stat().st_size
    received = [exchange(gateway.port, sent.encode(), resets=resets) for _ in range(TIMES)]
    traffic = TIMES * len(sent.encode()) + sum(map(len, received))

    def events() -> list[dict]:
        lines = gateway.log.read_bytes()[before:].rpartition(b"\n")[0].splitlines()  # the last one may be half written
        return [json.loads(line) for line in lines]

    if resets:  # a response was sent as well; a request whose client has left before it begins has no event
        traffic += TIMES * 300
        end = b"GET /end HTTP/1.1\r\n\r\n"
        while not any(event.get("path") == "/end" for event in events()):
            traffic += len(end) + len(exchange(gateway.port, end))
    if re.match(r"GET|HEAD", sent) and "x" * 100 not in sent and not resets:
        wait_for(lambda: len(events()) >= TIMES)
    assert gateway.log.stat().st_size - before <= traffic
    assert not [event for event in events() if event["event"] == "unexpected_error" or "exception" in event]


def told() -> float:
    value = REGISTRY.get_sample_value("gateway_event_loop_pause_seconds")
    assert value is not None
    return value


def test_longest_pause_counts_until_its_window_ends():
    pauses = Pauses(100.0)
    pauses.note(100.1, 0.002, 0.001)
    pauses.note(101.0, 0.04, 0.03)
    pauses.note(102.0, 0.003, 0.001)
    assert told() == 0.04
    pauses.note(101.0 + WINDOW_SECONDS - 0.1, 0.001, 0.001)
    assert told() == 0.04
    pauses.note(101.0 + WINDOW_SECONDS, 0.001, 0.001)
    assert told() == 0.003


def test_long_pause_is_logged_after_its_second():
    pauses = Pauses(100.0)
    with structlog.testing.capture_logs() as captured:
        pauses.note(100.5, 2 * LONG_SECONDS, LONG_SECONDS)
        pauses.note(100.9, BUSY_SECONDS + 0.001, 0.0)
        assert captured == []
        pauses.note(101.0, 0.0, 0.0)
        pauses.note(102.0, LONG_SECONDS, LONG_SECONDS)
        pauses.note(102.1, BUSY_SECONDS, 0.0)
        pauses.note(103.0, 0.0, 0.0)
    expected = {"event": "loop_paused", "log_level": "warning", "seconds": 0.251, "cpu_seconds": 0.0, "count": 1}
    assert captured == [expected]


def test_pauses_of_a_busy_machine_are_logged_once_a_minute():
    pauses = Pauses(100.0)
    with structlog.testing.capture_logs() as captured:
        for second in range(100, 100 + 2 * QUIET_SECONDS + 2):
            pauses.note(second + 0.5, BUSY_SECONDS + second / 1000, 0.01)
    assert [event["count"] for event in captured] == [1, QUIET_SECONDS, QUIET_SECONDS]
    assert [event["seconds"] for event in captured] == [0.35, 0.41, 0.47]


def test_pauses_of_the_machine_without_clients_are_not_logged():
    """What the loop computed itself is logged in any case."""
    pauses = Pauses(100.0, lambda: False)
    with structlog.testing.capture_logs() as captured:
        pauses.note(100.5, 2 * LONG_SECONDS, LONG_SECONDS)
        pauses.note(101.5, 3 * LONG_SECONDS, 2 * LONG_SECONDS)
        pauses.note(102.5, 0.0, 0.0)
    assert [(event["count"], event["seconds"]) for event in captured] == [(1, 0.15)]


def test_last_pause_is_logged_when_its_minute_ends():
    pauses = Pauses(100.0)
    with structlog.testing.capture_logs() as captured:
        pauses.note(100.5, 2 * BUSY_SECONDS, 0.0)
        pauses.note(101.5, 3 * BUSY_SECONDS, 0.0)
        pauses.note(101.0 + QUIET_SECONDS, 0.0, 0.0)
    assert [(event["count"], event["seconds"]) for event in captured] == [(1, 0.5), (1, 0.75)]


def test_pauses_by_the_gateway_are_logged_every_second():
    pauses = Pauses(100.0)
    with structlog.testing.capture_logs() as captured:
        for second in range(100, 105):
            pauses.note(second + 0.4, 1.0, 0.0)
            pauses.note(second + 0.5, 2 * LONG_SECONDS, 1.5 * LONG_SECONDS)
        pauses.note(105.0, 0.0, 0.0)
    assert [event["cpu_seconds"] for event in captured if event["cpu_seconds"]] == [0.075] * 5


async def test_blocking_work_is_a_pause():
    async with asyncio.timeout(60), heartbeat():
        await wait_until(lambda: told() < 0.15)  # the test before has left its own
        while told() <= 0.15:
            time.sleep(0.2)  # noqa: ASYNC251  # what is to be found out
            await asyncio.sleep(0.01)  # for the beat that was late
