"""A stub of the inference server that answers at once, and a client of the application."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import httpx
import numpy as np
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.app import create_app
from gateway.errors import GatewayError, ModelNotFound, no_features
from gateway.inference.backend import (
    Backend,
    Call,
    CallLimits,
    Embeddings,
    EndpointHealth,
    InferResult,
    ModelInfo,
    ModelLoader,
    Row,
)
from gateway.inference.prediction import Prediction
from gateway.ingest.resizing import Resize
from tests.asking import encode
from tests.settings import Settings

MODEL = ModelInfo("ensemble_model", versions=("1",), ready=True, classes=2, labels=("cat", "dog"))
PNG = encode(np.zeros((4, 4, 3), np.uint8), ".png")
ROUTES = create_app(Settings(_env_file=None), cast("Backend", None)).state.routes
VECTOR = np.array([3.0, 0.0, -4.0, 0.0], np.float32)


class StubBackend:
    """Sees a cat in every image, or raises `fault`."""

    supports_cancellation = True
    loader: ModelLoader | None = None

    def __init__(self, fault: Exception | None = None) -> None:
        self.fault = fault
        self.loaded = {MODEL.name}

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def health(self) -> Sequence[EndpointHealth]:
        return [EndpointHealth("127.0.0.1:8001", ready=True, last_probe=None)]

    def seal(self, image: bytes) -> bytes:
        return image

    def needs_own_call(self, seal: bytes, model_name: str, model_version: str) -> bool:
        return False

    def call_limits(self, model_name: str, model_version: str, max_images: int) -> CallLimits | None:
        return None

    async def infer(self, call: Call) -> InferResult:
        if self.fault is not None:
            raise self.fault
        row = Row(decoded=True, predictions=(Prediction("cat", 0, 0.9),))
        return InferResult(call.model_name, call.model_version or "1", (row,) * len(call.batch))

    async def models(self) -> Sequence[ModelInfo]:
        if self.fault is not None and not isinstance(self.fault, GatewayError):
            raise self.fault
        return [MODEL]

    async def model(self, name: str) -> ModelInfo:
        if name not in self.loaded:
            raise ModelNotFound
        return replace(MODEL, name=name)

    async def resize(self, model_name: str, model_version: str) -> Resize | None:
        return None

    async def load(self, name: str) -> None:
        self.loaded.add(name)

    async def unload(self, name: str) -> None:
        self.loaded.discard(name)


class VectorBackend(StubBackend):
    """Has the same embedding for every image; the model `plain` gives none."""

    async def infer(self, call: Call) -> InferResult:
        if self.fault is not None:
            raise self.fault
        if call.model_name == "plain" and call.embeddings is Embeddings.NEEDED:
            raise no_features("plain")
        embedding = VECTOR if call.embeddings is not Embeddings.NONE else None
        row = Row(decoded=True, predictions=(Prediction("cat", 0, 0.9),), embedding=embedding)
        return InferResult(call.model_name, call.model_version or "1", (row,) * len(call.batch))


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

        `body` is called for each message of the body, with what was sent before.
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
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": list(headers),
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        self._loop.run_until_complete(self._serve(scope, receive, send))
        return sent

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, "state": dict(self._state)}, receive, send)


@contextmanager
def client_of(backend: StubBackend | None = None, **settings: Any) -> Iterator[Client]:
    """A client of an application with these settings and no others."""
    with client_of_app(create_app(Settings(_env_file=None, **settings), backend or StubBackend())) as client:
        yield client


@contextmanager
def client_of_app(app: FastAPI) -> Iterator[Client]:
    """A client of an application."""
    loop = asyncio.new_event_loop()
    lifespan = app.router.lifespan_context(app)
    try:
        yield Client(loop, app, loop.run_until_complete(lifespan.__aenter__()))
        loop.run_until_complete(lifespan.__aexit__(None, None, None))
    finally:
        loop.close()
