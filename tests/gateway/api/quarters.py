"""A model that scores two quarters of an image, for tests of explanations."""

import asyncio
from collections.abc import Sequence

import cv2
import numpy as np

from gateway.errors import InferenceFailed, ModelNotFound
from gateway.inference.backend import Call, InferResult, Row
from tests.asking import encode
from tests.gateway.api.stub import StubBackend

LABELS = ("top left", "bottom right", "twin", "twin")


class Quarters(StubBackend):
    """Scores how bright the top left and the bottom right quarter of an image are."""

    def __init__(self, fails_after: int | None = None, seconds: float = 0.0) -> None:
        super().__init__()
        self.seconds = seconds
        """What each call takes."""
        self.images: list[bytes] = []
        self.calls: list[Call] = []
        self.fails_after = fails_after
        self.in_flight = self.most_in_flight = 0
        """Images in calls, now and at most."""

    async def labels(self, model_name: str, model_version: str) -> Sequence[str]:
        if model_name == "none":
            raise ModelNotFound
        return LABELS

    async def infer(self, call: Call) -> InferResult:
        self.in_flight += len(call.batch)
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.in_flight -= len(call.batch)
        self.images += call.batch.images
        self.calls.append(call)
        if self.fails_after is not None and len(self.images) > self.fails_after:
            raise InferenceFailed
        return InferResult(call.model_name, "1", tuple(map(_row, call.batch.images)))


def _row(image: bytes) -> Row:
    pixels = cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR).mean(axis=2) / 255
    height, width = pixels.shape
    top_left = pixels[: (height + 1) // 2, : (width + 1) // 2]
    scores = [top_left.mean(), pixels[height // 2 :, width // 2 :].mean(), 0, 0]
    return Row(decoded=True, scores=np.array(scores, np.float32))


def picture(height: int = 60, width: int = 120) -> bytes:
    """A black image whose top left quarter is white, and whose bottom right one is gray."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[: height // 2, : width // 2] = 255
    pixels[height // 2 :, width // 2 :] = 200
    return encode(pixels, ".png")
