"""`python -m bench.score_changes FOLDER`: how much each way to decode and resize changes the scores.

Each photograph goes through ingest, the preprocessor's resize and EfficientNet-Lite0 in this process. The reference is
the probabilities of the same network behind Pillow and torchvision.
"""

import hashlib
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from PIL import Image

from bench.limit import preprocessor
from bench.measurement import percentile
from bench.output import Into, put, table
from gateway.environment import load_settings
from gateway.errors import ImageError
from gateway.ingest.inspection import DecodePolicy
from gateway.ingest.resizing import PILLOW, TORCH, Resize, resize_of
from gateway.ingest.upload import Upload
from gateway_decoder.in_process import prepare
from gateway_decoder.opencv import cv2
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY
from gateway_models.networks.export import EFFICIENTNET_LITE0
from gateway_models.proof.reference import shown
from gateway_models.repository.preprocessing import reference_transforms

Pixels = NDArray[np.uint8]
Scores = NDArray[np.float32]
TOLERANCE = 1e-3
"""The tolerance of `gateway model parity`; photographs beyond it are listed."""
HEADER = ["", "photographs", "other top-1", "likeliest of those", "largest difference", "p99", "median"]


@dataclass
class Row:
    """The results of one way: each photograph's largest difference, and the reference score of each changed top-1."""

    differences: list[float] = field(default_factory=list)
    flipped: list[float] = field(default_factory=list)

    def add(self, scores: Scores, wanted: Scores) -> None:
        """Add a photograph."""
        self.differences.append(float(np.abs(scores - wanted).max()))
        if scores.argmax() != wanted.argmax():
            self.flipped.append(float(wanted.max()))

    def cells(self) -> list[str]:
        """The cells of the table."""
        likeliest = f"{max(self.flipped):.2f}" if self.flipped else "–"
        figures = (max(self.differences), percentile(self.differences, 99), statistics.median(self.differences))
        return [str(len(self.differences)), str(len(self.flipped)), likeliest, *(f"{each:.1e}" for each in figures)]


class Network:
    """EfficientNet-Lite0 behind the preprocessor's own resizes."""

    def __init__(self) -> None:
        wanted = EFFICIENTNET_LITE0.preprocessing
        assert wanted is not None
        self.resizes = {
            name: resize_of(wanted.parameters(), fast=fast) for name, fast in (("exact", False), ("fast", True))
        }
        self.reference = reference_transforms(wanted)
        self._model = EFFICIENTNET_LITE0.build().eval()
        resizing, on_torch = (preprocessor(DEFAULT_MODEL_REPOSITORY, name) for name in ("resizing", "on_torch"))
        how = (list(wanted.resize_size), [wanted.crop_size] * 2, resizing.InterpolationMode(wanted.interpolation))
        self._pillow, self._torch = resizing.PillowResize(*how), on_torch.TorchResize(*how)
        self._mean, self._std = (torch.tensor(each)[:, None, None] for each in (wanted.mean, wanted.std))

    @torch.inference_mode()
    def scores(self, image: torch.Tensor) -> Scores:
        """Probabilities fp32 [1000] of a normalised image."""
        answer: Scores = self._model(image[None])[0].numpy()
        return answer

    def of_pixels(self, pixels: Pixels, library: str) -> Scores:
        """Probabilities fp32 [1000] of an image as the preprocessor decodes it."""
        image = self._torch(pixels) if library == TORCH else torch.from_numpy(self._pillow(pixels))
        image = image.permute(2, 0, 1)
        return self.scores((image.float() / 255 - self._mean) / self._std)


def main(
    folders: Annotated[list[Path], typer.Argument(help="Folders of photographs.", exists=True)],
    into: Into = None,
) -> None:
    """Print a table of how far the scores of photographs are from those of Pillow and torchvision."""
    torch.set_num_threads(2)
    network, policy = Network(), DecodePolicy.from_settings(load_settings())
    rows: dict[str, Row] = {}
    for path, data in _photographs(folders):
        try:
            image, counted = _compared(data, network, policy)
        except (ImageError, OSError, ValueError):
            continue
        large = image.width * image.height > policy.above_pixels
        if (far := float(np.abs(counted["decode exact"] - counted["reference"]).max())) > TOLERANCE:
            print(f"bench | {path}: {far:.1e} away, decoded exactly", file=sys.stderr)
        for way, scores in counted.items():
            for size in ("all", "large") if large else ("all",):
                rows.setdefault(f"{size}: {way}", Row()).add(scores, counted["reference"])
    above = f"above {policy.above_pixels / 1e6:g} megapixels"
    named = ((name.replace("large:", f"{above}:"), row) for name, row in rows.items() if "reference" not in name)
    text = table(HEADER, ([name, *row.cells()] for name, row in named))
    print(text)
    if into is not None:
        put(into, "bench.score_changes", text)


def _compared(data: bytes, network: Network, policy: DecodePolicy) -> tuple[Image.Image, dict[str, Scores]]:
    """A photograph, and its scores by each way; raises what ingest and Pillow raise."""
    import io

    with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(data)) as opened:
        image = shown(opened)

    def decoded(resize: Resize | None) -> Pixels:
        payload = prepare(Upload(0, "", data), policy, resize).payload
        pixels = cv2.imdecode(np.frombuffer(payload, np.uint8), cv2.IMREAD_COLOR_RGB)
        assert pixels is not None
        return pixels.astype(np.uint8, copy=False)

    ways: dict[str, Callable[[], Scores]] = {
        "reference": lambda: network.scores(network.reference(image)),
        "decode exact": lambda: network.of_pixels(decoded(network.resizes["exact"]), PILLOW),
        "decode fast": lambda: network.of_pixels(decoded(network.resizes["fast"]), PILLOW),
        "resized by torch": lambda: network.of_pixels(decoded(None), TORCH),
    }
    return image, {name: way() for name, way in ways.items()}


def _photographs(folders: list[Path]) -> Iterator[tuple[Path, bytes]]:
    """Every JPEG once, without its copies."""
    seen = set()
    for path in sorted(path for folder in folders for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        digest = hashlib.sha256(data).digest()
        if data[:2] == b"\xff\xd8" and digest not in seen:
            seen.add(digest)
            yield path, data
            if len(seen) % 50 == 0:
                print(f"bench | {len(seen)} photographs", file=sys.stderr)


if __name__ == "__main__":
    typer.run(main)
