"""A request: its tasks, its statistics, its backpressure and its cost."""

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Message

from gateway.api.answers import MAX_UNREAD_BYTES, Native, ResultLines
from gateway.errors import EmptyFile
from gateway.inference.request_spec import Stage
from gateway.inference.result import Prediction, Predictions, Row
from gateway.inference.tasks import AGAIN_SECONDS, Tasks
from tests.doubles.backend import PNG
from tests.doubles.clock import Clock
from tests.doubles.scripted import Scripted, body_of, query, start
from tests.encoders import png_bomb
from tests.samples import encode, photograph

MANY = Predictions.of([Prediction("x" * (MAX_UNREAD_BYTES // 4), 0, 0.5)])


def test_request_stops_reading_until_its_lines_are_read(loop):
    row = Row(predictions=MANY)
    on, body = Scripted(loop, at_once=lambda call: call.answer(row=row)), body_of(*[PNG] * 50)
    may_take, lines = asyncio.Event(), []

    async def send(message: Message) -> None:
        await may_take.wait()
        lines.append(message.get("body"))

    async def answer() -> None:
        context: Any = SimpleNamespace(service=on.service)
        source: Any = SimpleNamespace(wait_for_disconnect=None)
        await ResultLines(context, query(), source, body.uploads(), Native())({}, receive=None, send=send)

    request = start(loop, answer())
    loop.settle()
    assert 5 <= sum(on.sizes) <= 5 + 4 + 1  # past the limit, what was in flight, and one that was read
    may_take.set()
    for _ in range(20):
        loop.settle()
    assert request.done()
    *results, summary, _ = lines[1:]
    assert sorted(json.loads(line)["index"] for line in results) == list(range(50))
    assert json.loads(summary)["summary"] == {"ok": 50, "failed": 0}


def test_time_in_a_stage_adds_up_and_concurrent_images_count_once(monkeypatch):
    clock, stage = Clock(100), Stage()
    monkeypatch.setattr(time, "perf_counter", clock)

    def fail() -> None:
        with stage:
            clock.seconds += 8
            raise EmptyFile

    with stage:
        clock.seconds += 1
        with stage:
            clock.seconds += 2
        clock.seconds += 4
    clock.seconds += 10
    with pytest.raises(EmptyFile):
        fail()
    clock.seconds += 10
    assert stage.past_seconds == 15


async def stubborn(swallows: int, ended: list[str]) -> None:
    """Swallows some cancellations, as a library may."""
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not swallows:
                ended.append("stubborn")
                raise
            swallows -= 1


async def in_group(*works) -> None:
    async with Tasks() as tasks:
        for work in works:
            tasks.start(work)
        await asyncio.sleep(0)


def test_task_that_swallows_its_cancellation_is_cancelled_again(loop):
    ended: list[str] = []
    task = start(loop, in_group(stubborn(3, ended), stubborn(0, ended)))
    for _ in range(3):
        loop.settle()
        assert not task.done()
        loop.pass_time(AGAIN_SECONDS)
    loop.finish(task)
    assert len(ended) == 2


BLACK = png_bomb(2_000, 2_000)
PHOTO = encode(photograph(), "JPEG")


def answered(loop, *files, **options):
    """The code of each file's error, or "ok"."""
    on = Scripted(loop, at_once=lambda call: call.answer())
    request = on.send(*files, **options)
    while not request.done():
        loop.settle()
    assert on.held == 0
    return [result.error.code if result.error else "ok" for result in on.results(request)]


def test_black_images_beyond_the_account_are_refused(loop):
    """Each takes 40 ms in the preprocessor, and brings next to nothing; photographs behind them are still answered."""
    codes = answered(loop, *[BLACK] * 300, *[PHOTO] * 20)
    passed = codes[:300].count("ok")
    assert 60 < passed < 150
    assert codes[:60] == ["ok"] * 60
    assert set(codes[:300]) == {"ok", "too_costly"}
    assert codes[300:].count("ok") >= 18


def test_refused_files_are_charged_for_their_inspection(loop, monkeypatch):
    """Each decode takes 0.5 s; a request has 6 s, and more with each file."""
    clock = iter(range(1_000))
    monkeypatch.setattr("gateway.predict.time.thread_time", lambda: next(clock) / 2)
    codes = answered(loop, *[b"\x89PNG\r\n\x1a\n" + bytes(100)] * 10)
    assert codes == ["invalid_image"] * 7 + ["too_costly"] * 3
