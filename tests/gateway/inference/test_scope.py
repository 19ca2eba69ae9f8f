"""A scope ends when all of its tasks have ended."""

import asyncio

from gateway.inference.scope import AGAIN_SECONDS, Scope
from tests.doubles.scripted import start


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


async def in_scope(*works, fault: Exception | None = None) -> None:
    async with Scope() as scope:
        for work in works:
            scope.start(work)
        await asyncio.sleep(0)
        if fault is not None:
            raise fault


def test_scope_ends_with_its_tasks(loop):
    ended: list[str] = []
    loop.finish(start(loop, in_scope(stubborn(0, ended), stubborn(0, ended))))
    assert len(ended) == 2


def test_task_that_swallows_its_cancellation_is_cancelled_again(loop):
    ended: list[str] = []
    task = start(loop, in_scope(stubborn(3, ended)))
    for _ in range(3):
        loop.settle()
        assert not task.done()
        loop.pass_time(AGAIN_SECONDS)
    loop.finish(task)
    assert ended


def test_cancellation_of_close_is_raised_after_all_tasks_end(loop):
    ended: list[str] = []
    task = start(loop, in_scope(stubborn(1, ended)))
    loop.settle()
    task.cancel()
    loop.settle()
    assert task.cancelled()
    assert ended


def test_exception_of_the_body_is_raised_unchanged(loop):
    task = start(loop, in_scope(stubborn(0, []), fault=KeyError("x")))
    loop.settle()
    assert isinstance(task.exception(), KeyError)
