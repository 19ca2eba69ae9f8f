"""One iteration of the event loop accepts many connections."""

import asyncio
import socket
from contextlib import ExitStack

import uvicorn
import uvloop

from gateway.limits.connections import RESERVED
from gateway.server.serve import ACCEPTED, listening_sockets
from gateway_local.hosts import LOOPBACK

ITERATIONS = 3
"""The first may have begun before the clients connected; the last notices that all have been accepted."""


class Counted(asyncio.Protocol):
    """A connection that is counted when it is accepted."""

    made = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        type(self).made += 1
        transport.close()


async def iterations_to_accept(count: int) -> int:
    """How many iterations of the event loop it takes to accept so many clients that have connected already."""
    loop = asyncio.get_running_loop()
    sockets = listening_sockets(uvicorn.Config("nothing:app", host=LOOPBACK, port=0, log_config=None))
    servers = [await loop.create_server(Counted, sock=each) for each in sockets]
    iterations, expected = 0, Counted.made + count
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(socket.create_connection(sockets[0].getsockname()))
        while Counted.made < expected:
            await asyncio.sleep(0)
            iterations += 1
    for server in servers:
        server.close()
    return iterations


def test_many_connections_are_accepted_in_an_iteration():
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(iterations_to_accept(ACCEPTED)) <= ITERATIONS
        assert runner.run(iterations_to_accept(3 * ACCEPTED)) <= 3 * ITERATIONS


def test_fewer_are_accepted_in_an_iteration_than_the_reserve_takes():
    assert ACCEPTED < RESERVED
