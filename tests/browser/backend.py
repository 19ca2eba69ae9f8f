"""Two models that classify the colour of an image, so that tests of the page know the results without a Triton."""

import asyncio
import io
import threading
from collections.abc import Sequence

import cv2
import numpy as np
from PIL import Image

from gateway.errors import ModelNotFound
from gateway.inference.backend import Call, InferResult, ModelInfo, Row
from gateway.inference.prediction import Prediction
from gateway.inference.selection import Selection
from gateway.inference.sequence import SequenceScores
from tests.asking import encode
from tests.gateway.api.stub import StubBackend

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
    ModelInfo(
        "moods",
        versions=("1",),
        version="1",
        ready=True,
        classes=2,
        labels=("calm", "blue"),
        input_height=16,
        input_width=16,
        resize_size=(32,),
        crop_size=(16,),
    ),
)


def picture(colour: str, number: int = 0) -> bytes:
    """A PNG of a single colour, twice as wide as high; each number gives a different file."""
    pixels = np.full((60, 120, 3), COLOURS[colour], np.uint8)
    pixels[0, 0] = number
    return encode(pixels, ".png")


def animation(*colours: str) -> bytes:
    """A GIF that shows each colour for a second."""
    first, *others = (Image.new("RGB", (120, 60), COLOURS[colour]) for colour in colours)
    file = io.BytesIO()
    first.save(file, "GIF", save_all=True, append_images=others, duration=1000)
    return file.getvalue()


def video(**colours: int) -> bytes:
    """A YUV4MPEG2 file of as many frames of each colour, ten a second."""
    frames = b""
    for colour, count in colours.items():
        pixels = np.full((240, 320, 3), COLOURS[colour], np.uint8)
        frames += (b"FRAME\n" + cv2.cvtColor(pixels, cv2.COLOR_RGB2YUV_I420).tobytes()) * count
    return b"YUV4MPEG2 W320 H240 F10:1 Ip A1:1 C420jpeg\n" + frames


class FirstImpression:
    """A sequence whose scores are those of its first frame."""

    def __init__(self) -> None:
        self._first: np.ndarray | None = None
        self._frames = 0

    async def add(self, scores, parameters, deadline, request_id) -> SequenceScores:
        self._first = scores if self._first is None else self._first
        self._frames += 1
        return SequenceScores(self._first, self._frames)

    async def close(self) -> None:
        pass


class ColourBackend(StubBackend):
    """Scores colours: 0.9 for the image's own, less for those after it. Answers while `gate` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.asked: list[tuple[str, str]] = []
        self.listed = MODELS
        self.followed = {"colours"}
        """The models whose streams have a sequence."""

    async def models(self) -> Sequence[ModelInfo]:
        return self.listed

    async def model(self, name: str) -> ModelInfo:
        for info in self.listed:
            if info.name == name:
                return info
        raise ModelNotFound

    async def labels(self, model_name: str, model_version: str) -> Sequence[str]:
        return (await self.model(model_name)).labels

    async def sequence(self, model_name: str, model_version: str) -> "FirstImpression":
        if model_name not in self.followed:
            raise ModelNotFound(f"Triton has no stateful model for the streams of {model_name!r}.")
        return FirstImpression()

    async def infer(self, call: Call) -> InferResult:
        self.asked.append((call.model_name, call.model_version))
        while not self.gate.is_set():  # noqa: ASYNC110  # tests open it from another thread
            await asyncio.sleep(0.005)
        info = await self.model(call.model_name)
        selection = call.selection or Selection()
        rows = []
        for image in call.batch.images:
            scores = _scores(cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR), info)
            if call.selection is None:
                rows.append(Row(decoded=True, scores=np.array([each.score for each in scores], np.float32)))
                continue
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
    # A brighter red has a higher score.
    sure = 0.9 if strongest != "red" else 0.6
    return [
        Prediction(label, number, sure if label == strongest else (1 - sure) / (number + 2))
        for number, label in enumerate(LABELS)
    ]
