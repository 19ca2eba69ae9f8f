"""Two models that classify the colour of an image, so that tests of the page know the results without a Triton."""

from datetime import UTC, datetime

import cv2
import numpy as np

from gateway.inference.backend import Call, ModelInfo
from gateway.inference.result import Row
from tests.asking import encode
from tests.doubles.backend import StubBackend, ranked

COLOURS = {"blue": (30, 60, 200), "green": (30, 160, 60), "red": (200, 40, 40)}
LABELS = (*COLOURS, *(f"colour {number}" for number in range(40)))
MODELS = (
    ModelInfo(
        "colours",
        description="Blue, green or red.",
        shares={"1": 10, "2": 90},
        since=datetime(2026, 11, 29, 12, tzinfo=UTC),
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


def video(**colours: int) -> bytes:
    """A YUV4MPEG2 file of as many frames of each colour, ten a second."""
    frames = b""
    for colour, count in colours.items():
        pixels = np.full((240, 320, 3), COLOURS[colour], np.uint8)
        frames += (b"FRAME\n" + cv2.cvtColor(pixels, cv2.COLOR_RGB2YUV_I420).tobytes()) * count
    return b"YUV4MPEG2 W320 H240 F10:1 Ip A1:1 C420jpeg\n" + frames


def colours_backend() -> StubBackend:
    """Scores colours: 0.9 for the image's own, less for those after it. A sequence has the scores of its first frame.

    Streams of the model `colours` alone have one.
    """
    backend = StubBackend(_rows, infos=MODELS, combine=lambda frames: frames[0])
    backend.followed = {"colours"}
    return backend


def _rows(call: Call) -> list[Row]:
    moods = call.model_name == "moods"
    return [ranked(MODELS[moods].labels, _scores(image, moods=moods))(call) for image in call.images]


def _scores(image: bytes, *, moods: bool) -> list[float]:
    pixels = cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR)
    strongest = int(np.argmax(pixels.mean(axis=(0, 1))))  # blue, green or red
    if moods:
        calm = 0.7 if LABELS[strongest] == "green" else 0.2
        return [calm, 1 - calm]
    # A brighter red has a higher score.
    sure = 0.9 if LABELS[strongest] != "red" else 0.6
    return [sure if number == strongest else (1 - sure) / (number + 2) for number in range(len(LABELS))]
