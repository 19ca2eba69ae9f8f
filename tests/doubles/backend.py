"""A backend in this process, which answers as a test says: for the applications of `tests.services`."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator, MutableSequence, Sequence
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from gateway.errors import GatewayError, ModelNotFound, SequenceUnknown, no_features
from gateway.inference.backend import (
    Call,
    CallLimits,
    Embeddings,
    EndpointHealth,
    ModelInfo,
    SequenceScores,
    SequenceStep,
)
from gateway.inference.result import Prediction, Predictions, Row
from gateway.ingest.resizing import Resize
from gateway.values.rollout import Rollout
from tests.asking import encode

MODEL = ModelInfo("ensemble_model", versions=("1",), ready=True, classes=2, labels=("cat", "dog"))
PNG, GIF = (encode(np.zeros((4, 4, 3), np.uint8), form) for form in (".png", ".gif"))
VECTOR = np.array([3.0, 0.0, -4.0, 0.0], np.float32)
CAT = Row(predictions=(Prediction("cat", 0, 0.9),))

Rows = Row | Sequence[Row]
Answer = Rows | Exception | Callable[[Call], Rows | Awaitable[Rows]] | Iterator[Any]
"""A row for every image, a row for each, an error, a function of the call that returns one of them, or an iterator with
the answer to each call. Rows without a version get the call's, or else the model's."""


class StubBackend:
    """Answers each call by `answer`, by default that every image shows a cat; raises `fault` while there is one.

    `infos` are its models, the default one first; `load` adds others like the default one. Calls are recorded, and wait
    while `gate` is cleared, then `seconds`. `combine` makes the scores of a sequence from the scores of its frames.
    """

    supports_cancellation = True

    def __init__(
        self,
        answer: Answer = CAT,
        *,
        infos: Sequence[ModelInfo] = (MODEL,),
        labels: Sequence[str] = (),
        seconds: float = 0.0,
        combine: Callable[[Sequence[NDArray[np.float32]]], NDArray[np.float32]] | None = None,
    ) -> None:
        self.fault = answer if isinstance(answer, Exception) else None
        self.answer = CAT if isinstance(answer, Exception) else answer
        self.infos = [replace(info, labels=tuple(labels)) for info in infos] if labels else list(infos)
        self.loaded = {info.name for info in infos}
        self.seconds = seconds
        self.gate = threading.Event()
        self.gate.set()
        self.calls: MutableSequence[Call] = []
        self.in_flight = self.most_in_flight = 0
        """Images in calls, now and at most."""
        self.ready = True
        self.drift_reference = ""
        self.rollouts: dict[str, Rollout] = {}
        self.sequences: list[StubSequence] = []
        self.sequence_fault: GatewayError | None = None
        self.combine = combine
        self.followed = self.loaded
        """The models whose streams have a sequence."""
        self.steps: list[SequenceStep] = []
        self.frames: dict[int, int] = {}
        """Frames of each sequence that a client drives; a sequence's scores are half of the frame's."""

    @property
    def images(self) -> list[bytes]:
        return [image for call in self.calls for image in call.images]

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def health(self) -> Sequence[EndpointHealth]:
        return [EndpointHealth("127.0.0.1:8001", ready=self.ready)]

    def sign(self, image: bytes) -> bytes:
        return image

    def needs_own_call(self, signature: bytes, model_name: str, model_version: str) -> bool:
        return False

    def rollout(self, model_name: str) -> Rollout | None:
        return self.rollouts.get(model_name)

    def call_limits(self, model_name: str, model_version: str, max_images: int) -> CallLimits | None:
        return None

    async def infer(self, call: Call) -> Sequence[Row]:
        self.calls.append(call)
        self.in_flight += len(call.images)
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            while not self.gate.is_set():  # noqa: ASYNC110  # tests open it from another thread
                await asyncio.sleep(0.005)
            if self.seconds:
                await asyncio.sleep(self.seconds)
            if self.fault is not None:
                raise self.fault
            rows = await self._result(call)
            for row in rows:
                row.best = row.best or Predictions.of(row.predictions)[: call.least_classes]
            return rows
        finally:
            self.in_flight -= len(call.images)

    async def _result(self, call: Call) -> Sequence[Row]:
        answer: Any = next(self.answer) if isinstance(self.answer, Iterator) else self.answer
        if callable(answer):
            answer = answer(call)
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, Exception):
            raise answer
        rows = (answer,) * len(call.images) if isinstance(answer, Row) else answer
        info = next((info for info in self.infos if info.name == call.model_name), self.infos[0])
        version = call.model_version or info.version or "1"
        about = {"multi_label": info.multi_label, "drift_reference": self.drift_reference}
        return [replace(row, model_version=row.model_version or version, **about) for row in rows]

    async def models(self) -> Sequence[ModelInfo]:
        if self.fault is not None and not isinstance(self.fault, GatewayError):
            raise self.fault
        return self.infos

    async def model(self, name: str) -> ModelInfo:
        if name not in self.loaded:
            raise ModelNotFound
        return next((info for info in self.infos if info.name == name), replace(self.infos[0], name=name))

    async def labels(self, model_name: str, model_version: str) -> Sequence[str]:
        return (await self.model(model_name)).labels

    async def sequence(self, model_name: str, model_version: str) -> "StubSequence":
        if self.combine is None or model_name not in self.followed:
            raise ModelNotFound(f"Triton has no stateful model for the streams of {model_name!r}.")
        self.sequences.append(StubSequence(self, self.combine))
        return self.sequences[-1]

    async def add_to_sequence(self, model_name: str, model_version: str, step: SequenceStep) -> SequenceScores:
        self.steps.append(step)
        if step.start:
            self.frames[step.sequence_id] = 0
        if step.sequence_id not in self.frames:
            raise SequenceUnknown
        self.frames[step.sequence_id] += 1
        frames = self.frames.pop(step.sequence_id) if step.end else self.frames[step.sequence_id]
        return SequenceScores(step.scores / 2, frames)

    def tensor_input(self, model_name: str) -> None:
        return None

    async def resize(self, model_name: str, model_version: str) -> Resize | None:
        return None

    async def statistics(self, model_name: str, model_version: str) -> bytes:
        return b""

    async def load(self, name: str) -> None:
        self.loaded.add(name)

    async def unload(self, name: str) -> None:
        self.loaded.discard(name)


class StubSequence:
    """A stream's sequence; raises the backend's `sequence_fault` while there is one."""

    def __init__(self, backend: StubBackend, combine: Callable[..., NDArray[np.float32]]) -> None:
        self._backend, self._combine = backend, combine
        self.scores: list[NDArray[np.float32]] = []
        self.parameters: list[dict[str, Any]] = []
        self.closed = False

    async def add(self, scores, parameters, deadline, request_id) -> SequenceScores:
        if self._backend.sequence_fault is not None:
            raise self._backend.sequence_fault
        self.scores.append(scores)
        self.parameters.append(dict(parameters))
        return SequenceScores(self._combine(self.scores), len(self.scores))

    async def close(self) -> None:
        self.closed = True


def scored(*scores: float) -> Row:
    """A row with the score of every class."""
    return Row(scores=np.array(scores, np.float32))


def by_image(row_of: Callable[[bytes], Row]) -> Callable[[Call], Sequence[Row]]:
    """An answer that depends on each image."""
    return lambda call: [row_of(image) for image in call.images]


def ranked(labels: Sequence[str], scores: Sequence[float]) -> Callable[[Call], Row]:
    """An answer with the classes that the call selects, or all scores if it selects none, as the catalogue has them."""
    order = sorted(range(len(scores)), key=lambda number: -scores[number])
    every = np.array(scores, np.float32)
    known = Predictions.of(Prediction(labels[number], number, float(scores[number])) for number in order)

    def answer(call: Call) -> Row:
        if call.selection is None:
            return Row(scores=every)
        kept = known[: call.selection.class_count(multi_label=False)]
        chosen = call.selection.apply(kept, multi_label=False)
        return Row(predictions=chosen, best=known[: call.least_classes])

    return answer


def with_vector(call: Call) -> Row:
    """A cat with the same embedding for every image; the model `plain` gives none."""
    if call.model_name == "plain" and call.embeddings is Embeddings.NEEDED:
        raise no_features("plain")
    return replace(CAT, embedding=VECTOR if call.embeddings is not Embeddings.NONE else None)


def brightness(image: bytes) -> float:
    """How bright an encoded image is, from 0 to 1."""
    return float(cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR).mean()) / 255


QUARTERS = ("top left", "bottom right", "twin", "twin")


def quarters(image: bytes) -> Row:
    """Scores of the labels `QUARTERS`: how bright the top left and the bottom right quarter of an image are."""
    pixels = cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR).mean(axis=2) / 255
    height, width = pixels.shape
    return scored(
        pixels[: (height + 1) // 2, : (width + 1) // 2].mean(), pixels[height // 2 :, width // 2 :].mean(), 0, 0
    )


def picture(height: int = 60, width: int = 120) -> bytes:
    """A black image whose top left quarter is white, and whose bottom right one is gray."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[: height // 2, : width // 2] = 255
    pixels[height // 2 :, width // 2 :] = 200
    return encode(pixels, ".png")


def quarters_backend(answer: Answer | None = None, **options: Any) -> StubBackend:
    """A backend of a model that scores two quarters of an image, for tests of explanations."""
    return StubBackend(by_image(quarters) if answer is None else answer, labels=QUARTERS, **options)


FRAME_LABELS = ("dark", "bright")


def frame(bright: int) -> bytes:
    """An image whose brightness, from 0 to 255, is what `frame_backend` sees in it."""
    return encode(np.full((8, 8, 3), bright, np.uint8), ".png")


def frame_backend() -> StubBackend:
    """A backend for streams: sees how bright each image is; a sequence is the mean of its frames."""

    def row(image: bytes) -> Row:
        return scored(1 - brightness(image), brightness(image))

    return StubBackend(by_image(row), labels=FRAME_LABELS, combine=lambda frames: np.mean(frames, axis=0))
