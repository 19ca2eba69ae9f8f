"""Accepting connections, and the settings that are computed before the workers start."""

import asyncio
import os
import socket
from contextlib import ExitStack

import pytest
import uvicorn
import uvloop

from gateway.limits.connections import RESERVED
from gateway.machine.capacity import plan
from gateway.server import serve as serving
from gateway.server.serve import ACCEPTED, listening_sockets
from gateway.settings import variable
from gateway_local.hosts import LOOPBACK, free_port
from tests.settings import Settings

ITERATIONS = 3
"""The first may have begun before the clients connected; the last notices that all have been accepted."""


class Counted(asyncio.Protocol):
    """A connection that is counted when it is accepted."""

    made = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        type(self).made += 1
        transport.close()


async def iterations_to_accept(count: int) -> int:
    """How many iterations of the event loop it takes to accept `count` clients that have connected already."""
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


@pytest.fixture
def served(monkeypatch):
    """The settings of a service that is started with some settings, and the environment of its workers."""
    found = []
    monkeypatch.setattr(serving, "run", lambda _app, settings, **_: found.append(settings))
    monkeypatch.setattr(serving, "configure_logs", lambda _: None)
    monkeypatch.setattr(serving, "memory_limit", lambda: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(os, "environ", dict(os.environ))

    def started(**fields: object) -> tuple[Settings, dict[str, str]]:
        serving.serve(Settings(_env_file=None, port=free_port(), **fields))
        return found[-1], dict(os.environ)

    return started


@pytest.mark.parametrize(("beside", "gpus"), [("cpu", 0), ("gpu", 16)])
def test_settings_beside_a_triton_are_those_of_the_plan(served, beside, gpus):
    settings, environment = served(beside_triton=beside, cores=16)
    wanted = plan(16, gpus).settings()
    assert {field: getattr(settings, field) for field in wanted} == wanted
    assert {field: environment[variable(field)] for field in wanted} == {field: str(wanted[field]) for field in wanted}


def test_settings_that_are_set_stay_beside_a_triton(served):
    settings, environment = served(beside_triton="gpu", cores=16, workers=3)
    assert settings.workers == 3
    assert settings.max_images_in_flight == plan(16, 16).images_in_flight
    assert environment.get(variable("workers")) is None


def test_gateway_alone_keeps_its_defaults(served):
    settings, _ = served(cores=16)
    assert settings.workers == Settings.model_fields["workers"].default
