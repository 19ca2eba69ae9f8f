"""One connection: in every phase of both protocols a timer or an ASGI task runs."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace

import pytest
import uvicorn
from uvicorn.server import ServerState

from gateway.limits.pools import upload_buffer
from gateway.plugins.streams.websockets import StreamProtocol
from gateway.server.connection import Connection, Phase, head
from gateway.server.connections import CONNECTIONS, Connections, Wait
from gateway.server.http import SMALL_BYTES, HttpHandler
from tests.attack.websocket import handshake, message
from tests.settings import Settings


def post(nbytes: int) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % nbytes


GET, POST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", post(10)
UPGRADE = handshake().removesuffix(b"\r\n")
LARGE_BYTES = 16 * 2**20
"""More than the buffers of a socket on both sides."""


class Recorded(Connection):
    """A connection that notes each phase, and whether anything would end it."""

    made: list["Recorded"]

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        self.made.append(self)
        self.phases: list[Phase] = []
        self.unwatched: list[Phase] = []

    def update_reading(self) -> None:
        super().update_reading()
        self.phases.append(self.phase)
        if self.phase is not Phase.CLOSED and not self.is_watched:
            self.unwatched.append(self.phase)


class Service:
    """An application set by the test, behind connections that are recorded."""

    def __init__(self, **settings) -> None:
        self.connections: list[Recorded] = []
        self.clients: list[asyncio.StreamWriter] = []
        self.go_on = asyncio.Event()
        self.application: Callable[..., Awaitable[None]]
        self.port = 0
        config = uvicorn.Config(self._serve, interface="asgi3", ws="none", lifespan="off", log_config=None)
        config.load()
        chosen = Settings(_env_file=None, **settings)
        self.pool = Connections(chosen.max_connections)
        self.state = ServerState()
        runtime = SimpleNamespace(
            settings=chosen,
            uploads=upload_buffer(2**20),
            websockets={"/stream": StreamProtocol},
        )
        kind = type("Made", (Recorded,), {"made": self.connections})
        self.create = lambda: kind(
            config, self.state, {"runtime": runtime, CONNECTIONS: self.pool}, first_handler=HttpHandler
        )

    async def _serve(self, scope, receive, send) -> None:
        await self.application(scope, receive, send)

    async def connect(self, first: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Recorded]:
        known = len(self.connections)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.clients.append(writer)
        writer.write(first)
        await until(lambda: len(self.connections) > known)
        return reader, writer, self.connections[-1]


@contextlib.asynccontextmanager
async def service(application, **settings) -> AsyncIterator[Service]:
    running = Service(**settings)
    running.application = lambda scope, receive, send: application(running, scope, receive, send)
    server = await asyncio.get_running_loop().create_server(running.create, "127.0.0.1", 0)
    running.port = server.sockets[0].getsockname()[1]
    try:
        async with asyncio.timeout(30):
            yield running
    finally:
        server.close()
        for client in running.clients:
            client.transport.abort()
        for connection in running.connections:
            connection.transport.abort()
        await until(lambda: all(connection.phase is Phase.CLOSED for connection in running.connections))
        for task in list(running.state.tasks):
            task.cancel()
        await asyncio.gather(*running.state.tasks, return_exceptions=True)
    for connection in running.connections:
        assert not connection.unwatched


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # no event
        await asyncio.sleep(0.001)


async def reaches(connection: Recorded, phase: Phase) -> None:
    """Wait for a phase, in which something must run that ends it."""
    await until(lambda: connection.phase in (phase, Phase.CLOSED))
    assert connection.phase is phase, connection.phases
    assert phase is Phase.CLOSED or connection.is_watched


async def respond(running, scope, receive, send) -> None:
    """Respond once the test continues, without reading the body."""
    await running.go_on.wait()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x"})


async def stream(running, scope, receive, send) -> None:
    """Accept once the test continues, and close at the first message."""
    await receive()
    await running.go_on.wait()
    await send({"type": "websocket.accept"})
    await receive()
    await send({"type": "websocket.close"})


async def echo_nothing(running, scope, receive, send) -> None:
    """Accept, and take one message when the test continues."""
    await receive()
    await send({"type": "websocket.accept"})
    await running.go_on.wait()
    while (await receive())["type"] == "websocket.receive":
        pass


async def request_phases() -> set[Phase]:
    async with service(respond) as running:
        _, writer, connection = await running.connect()
        await reaches(connection, Phase.REQUEST)
        writer.write(GET[:10])
        await reaches(connection, Phase.REQUEST)
        writer.write(GET[10:])
        await reaches(connection, Phase.SERVING)
        writer.write(GET * 3)  # pipelined
        running.go_on.set()
        await reaches(connection, Phase.IDLE)
        writer.write(b"\r\n")
        await reaches(connection, Phase.REQUEST)
        writer.write(POST + b"x")  # of which the application reads nothing
        await reaches(connection, Phase.REQUEST)
        writer.write(b"x" * 9)
        await reaches(connection, Phase.IDLE)
        writer.write(b"?\r\n\r\n")
        await reaches(connection, Phase.LINGERING)
        writer.close()
        await reaches(connection, Phase.CLOSED)
        return set(connection.phases) | {connection.phase}


async def upload_phases() -> set[Phase]:
    async with service(answers(200, reads=True), max_connections=1) as running:
        _, writer, connection = await running.connect(POST + b"x")
        await reaches(connection, Phase.SERVING)
        writer.transport.abort()
        await reaches(connection, Phase.CLOSED)
        reader, _, connection = await running.connect(POST + b"x")
        await until(lambda: connection.handler.needs().wait is Wait.MORE)
        await running.connect(GET)  # which displaces it
        await reaches(connection, Phase.LINGERING)
        assert b" 503 " in await reader.readuntil(b"\r\n\r\n")
        assert b'"limit":"max_connections"' in await reader.readuntil(b"}")
        return set(connection.phases)


async def stream_phases() -> set[Phase]:
    async with service(stream) as running:
        _, writer, connection = await running.connect(UPGRADE + b"\r\n")
        await reaches(connection, Phase.OPEN)
        running.go_on.set()
        writer.write(message(1, b"x") + message(8, struct.pack("!H", 1000)))
        await reaches(connection, Phase.CLOSED)
        return set(connection.phases)


async def broken_stream_phases() -> set[Phase]:
    async with service(echo_nothing) as running:
        _, writer, connection = await running.connect(UPGRADE + b"\r\n" + message(1, b"x") * 100)
        await reaches(connection, Phase.OPEN)
        running.go_on.set()
        writer.write(b"\xff\xff")
        await reaches(connection, Phase.CLOSED)
        _, writer, connection = await running.connect(UPGRADE.replace(b"==", b"") + b"\r\n")
        await reaches(connection, Phase.CLOSED)
        return set(connection.phases)


async def test_every_phase_has_a_timer_or_a_task():
    """A walk through every phase of both protocols; each connection is also checked after each of its events."""

    walks = (request_phases, upload_phases, stream_phases, broken_stream_phases)
    seen = set().union(*[await each() for each in walks])
    assert seen | {Phase.CLOSED} == set(Phase)


async def test_reset_after_the_handshake_is_a_disconnect():
    """The application accepts a client that has gone, and receives the disconnect instead of an exception."""
    received = []

    async def application(running, scope, receive, send) -> None:
        received.append((await receive())["type"])
        await running.go_on.wait()
        await send({"type": "websocket.accept"})
        received.append((await receive())["type"])

    async with service(application) as running:
        _, writer, connection = await running.connect(UPGRADE + b"\r\n")
        await reaches(connection, Phase.OPEN)
        writer.transport.abort()
        await reaches(connection, Phase.CLOSED)
        running.go_on.set()
        await until(lambda: not running.state.tasks)
    assert received == ["websocket.connect", "websocket.disconnect"]


@pytest.mark.parametrize(("nbytes", "reads"), [(66_000, True), (LARGE_BYTES, False)])
async def test_only_a_body_that_is_still_coming_stops_the_reading(nbytes, reads):
    """Both are more than the connection holds of a body, and the application takes none of it."""
    async with service(respond) as running:
        _, writer, connection = await running.connect()
        writer.write(post(nbytes) + bytes(nbytes))
        await reaches(connection, Phase.SERVING)
        await until(lambda: not (connection.handler.needs().wait is Wait.MORE and connection.transport.is_reading()))
        assert connection.transport.is_reading() is reads


async def test_messages_that_wait_stop_the_reading():
    """While the application takes no message, the connection reads no more than it can hold."""

    async with service(echo_nothing) as running:
        _, writer, connection = await running.connect(UPGRADE + b"\r\n")
        await reaches(connection, Phase.OPEN)
        flood = message(1, bytes(100)) * 8_000
        writer.transport.set_write_buffer_limits(0)
        for _ in range(40):
            writer.write(flood)  # 32 MB in all, more than the sockets hold
        await until(lambda: not connection.transport.is_reading())
        assert writer.transport.get_write_buffer_size() > len(flood)
        running.go_on.set()
        await until(connection.transport.is_reading)


def answers(status: int, *, reads: bool = False):
    """An application that responds without reading the body, or after it."""

    async def application(running, scope, receive, send) -> None:
        while reads and (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"1")]})
        await send({"type": "http.response.body", "body": b"x"})

    return application


@pytest.mark.parametrize("framing", [b"Content-Length: %d" % (SMALL_BYTES + 1), b"Transfer-Encoding: chunked"])
async def test_error_before_the_end_of_a_large_body_closes_the_connection(framing):
    """The client reads the response, though it is still sending."""
    async with service(answers(413)) as running:
        reader, writer, connection = await running.connect(POST.replace(b"Content-Length: 10", framing))
        assert b"connection: close" in await reader.readuntil(b"\r\n\r\n")
        writer.write(bytes(SMALL_BYTES + 1))
        assert await reader.read() == b"x"
        writer.close()
        await reaches(connection, Phase.CLOSED)


async def test_no_more_of_an_unread_body_is_discarded_than_the_limit(monkeypatch):
    monkeypatch.setattr("gateway.server.http.DRAIN_BYTES", 1_000)
    monkeypatch.setattr("gateway.server.connection.LINGER_SECONDS", 300)
    async with service(answers(413)) as running:
        _, writer, connection = await running.connect(post(SMALL_BYTES + 1))
        await reaches(connection, Phase.LINGERING)
        writer.write(bytes(1_000))
        await asyncio.sleep(0)
        assert connection.phase is Phase.LINGERING
        writer.write(bytes(1))
        await until(lambda: connection.is_closing and connection.phase is not Phase.LINGERING)


async def test_lingering_connection_gives_its_slot_to_another(monkeypatch):
    monkeypatch.setattr("gateway.server.connection.LINGER_SECONDS", 300)
    async with service(answers(413), max_connections=1) as running:
        _, _, lingering = await running.connect(post(SMALL_BYTES + 1))
        await reaches(lingering, Phase.LINGERING)
        reader, _, _ = await running.connect(GET)
        assert b" 413 " in await reader.readline()
        await reaches(lingering, Phase.CLOSED)


@pytest.mark.parametrize(
    ("status", "nbytes", "reads"),
    [(413, SMALL_BYTES, False), (200, SMALL_BYTES + 1, False), (413, SMALL_BYTES + 1, True)],
)
async def test_connection_is_kept_after_other_responses(status, nbytes, reads):
    """To a small body, to one that was read, and results that are sent while the body arrives."""
    async with service(answers(status, reads=reads)) as running:
        reader, writer, _ = await running.connect(post(nbytes))
        writer.write(bytes(nbytes) + GET)
        for _ in range(2):
            assert b"connection: close" not in await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(1) == b"x"


def test_headers_may_be_lists_as_asgi_allows():
    assert head(200, [[b"a", b"b"], (b"c", b"d")]).endswith(b"\r\na: b\r\nc: d\r\n")
    with pytest.raises(ValueError, match="line break"):
        head(200, [[b"a", b"b\r\nc: d"]])
