"""The event loop of asynchronous tests."""

import asyncio
from typing import Any

import grpc

from tests.loops import Loop
from tests.processes import free_port


def test_call_that_ends_after_its_loop_leaves_the_next_loop_alone():
    unhandled: list[dict[str, Any]] = []
    earlier, later = Loop(), Loop()
    later.set_exception_handler(lambda _, context: unhandled.append(context))

    async def call() -> tuple[grpc.aio.Channel, grpc.aio.Call]:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{free_port()}")
        return channel, channel.unary_unary("/service/method")(b"", wait_for_ready=True)

    async def end(channel: grpc.aio.Channel, waiting: grpc.aio.Call) -> None:
        async with asyncio.timeout(10), grpc.aio.insecure_channel(f"127.0.0.1:{free_port()}"):
            waiting.cancel()
            while not (earlier.ignored or unhandled):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            await channel.close()

    with asyncio.Runner(loop_factory=lambda: earlier) as runner:
        left = runner.run(call())
    with asyncio.Runner(loop_factory=lambda: later) as runner:
        runner.run(end(*left))
    assert not unhandled
