"""Services of tests: an application in this process with a client, or on a port, in a thread.

In a separate process: `tests.processes.running_gateway`.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self, cast
from unittest.mock import patch

import httpx
import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.app import create_app
from gateway.inference.backend import Backend
from gateway.ingest.decoder_pool import DecoderPool
from gateway.server.serve import server_options
from tests.doubles.backend import StubBackend
from tests.processes import free_port, wait_for
from tests.settings import Settings

ROUTES = create_app(Settings(_env_file=None), cast("Backend", None)).state.routes


class Client:
    """An HTTP client of an application in this process, whose lifespan has begun."""

    def __init__(self, loop: asyncio.AbstractEventLoop, app: ASGIApp, state: Any) -> None:
        self._loop, self._app, self._state = loop, app, state

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def exchange() -> httpx.Response:
            transport = httpx.ASGITransport(self._serve, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
                return await client.request(method, path, **options)

        return self._loop.run_until_complete(exchange())

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)

    def ask(
        self,
        method: str,
        path: str,
        headers: Sequence[tuple[bytes, bytes]] = (),
        *,
        body: Callable[[Sequence[Message]], Message] = lambda sent: {"type": "http.request"},
    ) -> list[Message]:
        """The messages of an answer, for paths and headers that no HTTP client would send.

        `body` is called for each message of the body, with the messages sent so far.
        """
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            return body(sent)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path.partition("?")[0],
            "raw_path": path.encode(),
            "query_string": path.partition("?")[2].encode(),
            "root_path": "",
            "headers": list(headers),
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        self._loop.run_until_complete(self._serve(scope, receive, send))
        return sent

    def open(self, path: str, headers: Sequence[tuple[bytes, bytes]] = ()) -> int:
        """The status with which the handshake of a WebSocket is answered: 101 if it is opened, and closed at once."""
        sent: list[Message] = []
        messages = iter([{"type": "websocket.connect"}])

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            return next(messages, {"type": "websocket.disconnect", "code": 1005})

        scope = {
            "type": "websocket",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": list(headers),
            "subprotocols": [],
            "extensions": {"websocket.http.response": {}},
        }
        self._loop.run_until_complete(self._serve(scope, receive, send))
        return int(sent[0].get("status", 101))

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, "state": dict(self._state)}, receive, send)


def _only(settings: Mapping[str, Any]) -> Settings:
    """These settings and the defaults of all others; pydantic would ignore unknown ones."""
    unknown = settings.keys() - Settings.model_fields
    assert not unknown, f"there is no setting {unknown}; one of a plug-in needs its entry point: pip install -e ."
    return Settings(_env_file=None, **settings)


class DecodersOnDemand(DecoderPool):
    """DecoderPool without the process that is started in advance for the first image."""

    async def __aenter__(self) -> Self:
        return self


def decoders_on_demand() -> AbstractContextManager[object]:
    """Most applications in tests decode nothing, and a decoder's start takes a fifth of a second of processor time."""
    return patch("gateway.app.DecoderPool", DecodersOnDemand)


@contextmanager
def client_of(backend: StubBackend | None = None, **settings: Any) -> Iterator[Client]:
    """A client of an application with these settings and no others."""
    with client_of_app(create_app(_only(settings), backend or StubBackend())) as client:
        yield client


@contextmanager
def client_of_app(app: FastAPI) -> Iterator[Client]:
    lifespan = app.router.lifespan_context(app)
    with asyncio.Runner() as runner:  # which also ends the loop's threads
        loop = runner.get_loop()
        yield Client(loop, app, loop.run_until_complete(lifespan.__aenter__()))
        loop.run_until_complete(lifespan.__aexit__(None, None, None))


@contextmanager
def stream_service(
    backend: StubBackend, *, loop: str = "asyncio", **settings: Any
) -> Iterator[tuple[str, uvicorn.Server]]:
    """The host and port of a gateway that runs in a thread of this process, as it is served, and its server."""
    chosen = _only({"port": free_port(), **settings})
    server = uvicorn.Server(uvicorn.Config(create_app(chosen, backend), **{**server_options(chosen), "loop": loop}))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_for(lambda: server.started or not thread.is_alive())
        assert server.started, f"no service on port {chosen.port}: see the log"
        yield f"127.0.0.1:{chosen.port}", server
    finally:
        server.should_exit = True
        thread.join(60)
    assert not thread.is_alive()


@contextmanager
def stub_service(backend: StubBackend | None = None, **settings: Any) -> Iterator[str]:
    """The URL of such a gateway."""
    with stream_service(backend or StubBackend(), **settings) as (address, _):
        yield f"http://{address}"
