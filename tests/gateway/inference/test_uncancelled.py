"""Work that cannot be cancelled has an owner, and keeps its permits until it has ended."""

import asyncio

from gateway.inference.uncancelled import Uncancelled
from gateway.limits.admission import Admission
from tests.doubles.scripted import start


def gate() -> Admission:
    return Admission(max_images=1, max_bytes=100, max_images_waiting=1, max_wait_seconds=1)


async def ended(event: asyncio.Event, outcome: str | Exception = "done") -> str:
    await event.wait()
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def test_waiting_caller_gets_the_result(loop):
    owner, end = Uncancelled(), asyncio.Event()
    result, error = (start(loop, owner.run(ended(end, outcome))) for outcome in ("done", KeyError("x")))
    end.set()
    assert loop.finish(result) == "done"
    loop.settle()
    assert isinstance(error.exception(), KeyError)
    assert not owner


def test_abandoned_work_runs_on_and_its_error_is_consumed(loop):
    owner, end = Uncancelled(), asyncio.Event()
    waiting = start(loop, owner.run(ended(end, KeyError("x"))))
    waiting.cancel()
    loop.settle()
    assert waiting.cancelled()
    assert len(owner) == 1
    end.set()
    loop.settle()
    assert not owner


def test_permit_released_meanwhile_is_free_when_the_work_ends(loop):
    admission, owner, end = gate(), Uncancelled(), asyncio.Event()
    with admission.permits() as permits:
        permit = permits.try_acquire(10)
        waiting = start(loop, owner.run(ended(end), [permit]))
        waiting.cancel()
        loop.settle()
    assert admission.images.held == 1
    end.set()
    loop.settle()
    assert admission.images.held == 0


def test_unreleased_permit_stays_with_its_request(loop):
    admission, owner, end = gate(), Uncancelled(), asyncio.Event()
    with admission.permits() as permits:
        waiting = start(loop, owner.run(ended(end), [permits.try_acquire(10)]))
        end.set()
        loop.finish(waiting)
        assert admission.images.held == 1
    assert admission.images.held == 0
