"""An inference server for streams that answers in this process, and a gateway in front of it."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import cv2
import numpy as np
import uvicorn

from gateway.app import create_app
from gateway.errors import GatewayError, ModelNotFound
from gateway.inference.backend import Call, InferResult, Row
from gateway.inference.sequence import SequenceScores
from gateway.server.serve import server_options
from tests.gateway.api.stub import StubBackend
from tests.processes import free_port, wait_for
from tests.settings import Settings

LABELS = ("dark", "bright")


def frame(brightness: int) -> bytes:
    """An image whose brightness, from 0 to 255, is what FrameBackend sees in it."""
    return cv2.imencode(".png", np.full((8, 8, 3), brightness, np.uint8))[1].tobytes()


class CountingSequence:
    """Returns the mean of the frames so far."""

    def __init__(self, backend: "FrameBackend") -> None:
        self._backend = backend
        self.scores: list[np.ndarray] = []
        self.closed = False
        self.parameters: list[dict[str, Any]] = []

    async def add(self, scores, parameters, deadline, request_id) -> SequenceScores:
        if self._backend.sequence_fault is not None:
            raise self._backend.sequence_fault
        self.scores.append(scores)
        self.parameters.append(dict(parameters))
        return SequenceScores(np.mean(self.scores, axis=0), len(self.scores))

    async def close(self) -> None:
        self.closed = True


class FrameBackend(StubBackend):
    """Sees how bright each image is; answers while `open_gate` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.sequences: list[CountingSequence] = []
        self.sequence_fault: GatewayError | None = None
        self.open_gate = threading.Event()
        self.open_gate.set()
        self.in_work = 0
        self.seen = 0

    async def labels(self, model_name: str, model_version: str) -> Sequence[str]:
        if model_name not in self.loaded:
            raise ModelNotFound(f"There is no model {model_name!r}.")
        return LABELS

    async def sequence(self, model_name: str, model_version: str) -> CountingSequence:
        self.sequences.append(CountingSequence(self))
        return self.sequences[-1]

    async def infer(self, call: Call) -> InferResult:
        self.in_work += 1
        self.seen += 1
        try:
            while not self.open_gate.is_set():  # noqa: ASYNC110  # tests open it from another thread
                await asyncio.sleep(0.005)
            if self.fault is not None:
                raise self.fault
            rows = []
            for image in call.batch.images:
                bright = float(cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR).mean() / 255)
                rows.append(Row(decoded=True, scores=np.array([1 - bright, bright], np.float32)))
            return InferResult(call.model_name, call.model_version or "1", tuple(rows))
        finally:
            self.in_work -= 1


@contextmanager
def stream_service(
    backend: StubBackend, *, loop: str = "asyncio", **settings: Any
) -> Iterator[tuple[str, uvicorn.Server]]:
    """The host and port of a gateway that runs in a thread of this process, as it is served, and its server."""
    chosen = Settings(_env_file=None, port=free_port(), **settings)
    app = create_app(chosen, backend)
    server = uvicorn.Server(uvicorn.Config(app, **{**server_options(chosen), "loop": loop}))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_for(lambda: server.started)
        yield f"127.0.0.1:{chosen.port}", server
    finally:
        server.should_exit = True
        thread.join(60)
    assert not thread.is_alive()
