"""The event loop of asynchronous tests."""

import asyncio
from typing import Any

import grpc

from tests.loops import Loop
from tests.processes import free_port


def test_event_of_a_closed_loop_leaves_the_next_loop_alone():
    unhandled: list[dict[str, Any]] = []
    tasks: list[asyncio.Task[None]] = []
    earlier, later = Loop(), Loop()
    later.set_exception_handler(lambda _, context: unhandled.append(context))

    def channel() -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(f"127.0.0.1:{free_port()}")

    async def begin_to_wait() -> grpc.aio.Channel:
        waiting = channel()
        # Unlike a call, this wait goes on in the queue when its task is cancelled, and so outlives the loop.
        tasks.append(asyncio.create_task(waiting.wait_for_state_change(waiting.get_state())))
        await asyncio.sleep(0)
        return waiting

    async def end(waiting: grpc.aio.Channel) -> None:
        async with asyncio.timeout(10), channel():
            await waiting.close()
            while not (earlier.ignored or unhandled):  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    with asyncio.Runner(loop_factory=lambda: earlier) as runner:
        waiting = runner.run(begin_to_wait())
    with asyncio.Runner(loop_factory=lambda: later) as runner:
        runner.run(end(waiting))
    assert not unhandled
