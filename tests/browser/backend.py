"""Two models that name the colour of a picture: what the page's tests can foretell without a Triton."""

import asyncio
from collections.abc import Sequence

import cv2
import numpy as np

from gateway.errors import ModelNotFound
from gateway.inference.backend import Call, InferResult, ModelInfo, Row
from gateway.inference.prediction import Prediction
from gateway.inference.selection import Selection
from tests.api.stub import StubBackend
from tests.asking import encode

COLOURS = {"blue": (30, 60, 200), "green": (30, 160, 60), "red": (200, 40, 40)}
LABELS = (*COLOURS, *(f"colour {number}" for number in range(40)))
MODELS = (
    ModelInfo(
        "colours",
        versions=("1", "2"),
        version="2",
        ready=True,
        classes=len(LABELS),
        labels=LABELS,
        input_height=32,
        input_width=32,
        resize_size=(32,),
        crop_size=(32,),
    ),
    ModelInfo("moods", versions=("1",), version="1", ready=True, classes=2, labels=("calm", "blue")),
)


def picture(colour: str, number: int = 0) -> bytes:
    """A PNG of one colour, twice as wide as high; another file for each number."""
    pixels = np.full((60, 120, 3), COLOURS[colour], np.uint8)
    pixels[0, 0] = number
    return encode(pixels, ".png")


class ColourBackend(StubBackend):
    """Sees colours: 0.9 for the picture's own, less for those after it. `pause` holds every answer back."""

    def __init__(self) -> None:
        super().__init__()
        self.pause = 0.0
        self.asked: list[tuple[str, str]] = []

    async def models(self) -> Sequence[ModelInfo]:
        return MODELS

    async def model(self, name: str) -> ModelInfo:
        for info in MODELS:
            if info.name == name:
                return info
        raise ModelNotFound

    async def infer(self, call: Call) -> InferResult:
        self.asked.append((call.model_name, call.model_version))
        await asyncio.sleep(self.pause)
        info = await self.model(call.model_name)
        selection = call.selection or Selection()
        rows = []
        for image in call.batch.images:
            scores = _scores(cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR), info)
            best = sorted(scores, key=lambda prediction: -prediction.score)
            kept = best[: selection.class_count(multi_label=False)]
            rows.append(Row(decoded=True, predictions=selection.apply(kept, multi_label=False)))
        return InferResult(call.model_name, call.model_version or info.version, tuple(rows))


def _scores(pixels: np.ndarray, info: ModelInfo) -> list[Prediction]:
    blue, green, red = pixels.mean(axis=(0, 1))
    strongest = ("blue", "green", "red")[int(np.argmax((blue, green, red)))]
    if info.name == "moods":
        calm = 0.7 if strongest == "green" else 0.2
        return [Prediction("calm", 0, calm), Prediction("blue", 1, 1 - calm)]
    # A brighter red is a surer one.
    sure = 0.9 if strongest != "red" else 0.6
    return [
        Prediction(label, number, sure if label == strongest else (1 - sure) / (number + 2))
        for number, label in enumerate(LABELS)
    ]
