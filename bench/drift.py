"""`python -m bench.drift`: how often `gateway model drift` raises an alarm, with and without drift.

The images are random crops of photographs, classified by EfficientNet-Lite0 in this process. A window of crops of the
same photographs must raise none in 95 % of the cases; one of blurred or darkened crops, or with other photographs more
often than before, must raise one.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageFilter

from bench.output import Into, progress, publish, table
from gateway_models.networks.export import EFFICIENTNET_LITE0
from gateway_models.proof.image_files import image_files
from gateway_models.proof.reference import shown
from gateway_models.repository.preprocessing import reference_transforms
from gateway_predictions.drift.comparison import compare
from gateway_predictions.drift.sample import (
    BRIGHTNESS,
    CLASS,
    ENTROPY,
    FORMAT,
    PIXELS,
    SCORE,
    SHARPNESS,
    LoggedImage,
    sample_of,
)
from gateway_predictions.image_measures import MEASURED_SIDE, measures_of
from gateway_predictions.service_log import entropy
from gateway_predictions.shares import Proportion
from tests.photos import PHOTOS, pixels

SAME = "the same"
CROP_SIDES = (0.4, 0.95)
"""The least and the largest side of a crop, as a share of the photograph's."""
BATCH = 32
Array = NDArray[np.float32]
Change = Callable[[Image.Image], Image.Image]


def _unchanged(image: Image.Image) -> Image.Image:
    return image


def _blurred(image: Image.Image) -> Image.Image:
    """As a lens that is slightly out of focus: 3 pixels of 256."""
    return image.filter(ImageFilter.GaussianBlur(min(image.size) * 3 / 256))


def _darkened(image: Image.Image) -> Image.Image:
    """One stop less light, without gamma."""
    return ImageEnhance.Brightness(image).enhance(0.5)


DRIFTS: dict[str, tuple[Change, float]] = {
    SAME: (_unchanged, 1.0),
    "blurred": (_blurred, 1.0),
    "darkened": (_darkened, 1.0),
    "class-shifted": (_unchanged, 5.0),
}
"""What happens to a crop, and how many times as often the first quarter of the photographs is chosen as the others."""


class Network:
    """EfficientNet-Lite0 with the input of its last layer as embedding."""

    def __init__(self) -> None:
        wanted = EFFICIENTNET_LITE0.preprocessing
        assert wanted is not None
        self._transforms = reference_transforms(wanted)
        self._model = EFFICIENTNET_LITE0.build().eval()
        last = [module for module in self._model.modules() if isinstance(module, torch.nn.Linear)][-1]
        self._embeddings: list[torch.Tensor] = []
        last.register_forward_pre_hook(lambda _, inputs: self._embeddings.append(inputs[0]))

    @torch.inference_mode()
    def answers(self, images: Sequence[Image.Image]) -> tuple[Array, Array]:
        """Probabilities fp32 [images, classes], and embeddings fp32 [images, size]."""
        scores = self._model(torch.stack([self._transforms(image) for image in images])).numpy()
        return scores, self._embeddings.pop().flatten(1).numpy()


def main(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders of photographs; by default those of scikit-image and scikit-learn.", exists=True),
    ] = None,
    pool: Annotated[int, typer.Option(help="Crops of each kind, of which windows are drawn.", min=400)] = 2_000,
    windows: Annotated[int, typer.Option(help="Windows of each kind and size.", min=1)] = 200,
    sizes: Annotated[str, typer.Option(help="Images of a window, with commas.")] = "100,300",
    permutations: Annotated[int, typer.Option(min=99)] = 499,
    into: Into = None,
) -> None:
    """Print the share of windows of each kind that raise an alarm."""
    torch.set_num_threads(2)
    photos = _photographs(folders or [])
    network = Network()
    crops = {name: _crops(photos, network, pool, *how) for name, how in DRIFTS.items()}
    header = ["window", *(f"{size} images: alarms (95 %)" for size in sizes.split(",")), "by"]
    rows = []
    for number, (name, drifted) in enumerate(crops.items()):
        cells: list[str] = []
        causes: Counter[str] = Counter()
        for size in map(int, sizes.split(",")):
            alarms = 0
            for window in range(windows):
                rng = random.Random(f"{number} {size} {window}")
                # Disjoint: the reference never has an image of the window.
                both = rng.sample(crops[SAME], pool)
                reference, same = both[: pool // 2], both[pool // 2 :]
                chosen = rng.sample(same if name == SAME else drifted, size)
                found = compare(sample_of(reference), sample_of(chosen), permutations=permutations, bootstraps=1)
                alarms += bool(found.alarms)
                causes.update(shift.name for shift in found.alarms)
            cells.append(str(Proportion(alarms, windows)))
            progress(f"{name}, {size} images: {alarms} of {windows}")
        rows.append([name, *cells, ", ".join(f"{cause} {count}" for cause, count in causes.most_common(4)) or "–"])
    publish(table(header, rows), into, "bench.drift")


def _photographs(folders: Sequence[Path]) -> list[Image.Image]:
    """The photographs of some folders, or those in wheels, in an order that does not depend on their names."""
    if folders:
        found = []
        for path in image_files(folders):
            with Image.open(path) as opened:
                found.append(shown(opened))
    else:
        found = [pixels(name) for name in PHOTOS]
    random.Random(0).shuffle(found)
    return found


def _crops(
    photos: Sequence[Image.Image], network: Network, count: int, change: Change, odds: float
) -> list[LoggedImage]:
    """Random crops, and what the log would have of them."""
    rng = random.Random(f"{change.__name__} {odds}")
    often = max(1, len(photos) // 4)
    weights = [odds if number < often else 1.0 for number in range(len(photos))]
    found: list[LoggedImage] = []
    while len(found) < count:
        images = [change(_crop(rng.choices(photos, weights)[0], rng)) for _ in range(min(BATCH, count - len(found)))]
        answers = zip(images, *network.answers(images), strict=True)
        found += [_logged(f"{len(found) + number}", *each) for number, each in enumerate(answers)]
    return found


def _crop(photo: Image.Image, rng: random.Random) -> Image.Image:
    side = rng.uniform(*CROP_SIDES)
    width, height = round(photo.width * side), round(photo.height * side)
    left, top = rng.randint(0, photo.width - width), rng.randint(0, photo.height - height)
    crop = photo.crop((left, top, left + width, top + height))
    return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else crop


def _logged(request: str, image: Image.Image, scores: Array, embedding: Array) -> LoggedImage:
    best = np.argsort(scores)[::-1][:5]
    top = scores[best].astype(np.float64).tolist()
    scale = min(1.0, MEASURED_SIDE / min(image.size))
    small = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BOX)
    measures = measures_of(np.asarray(small))
    return LoggedImage(
        request,
        {
            SCORE: top[0],
            ENTROPY: entropy(top, multi_label=False),
            PIXELS: image.width * image.height,
            BRIGHTNESS: measures.brightness,
            SHARPNESS: measures.sharpness,
        },
        {CLASS: str(int(best[0])), FORMAT: "JPEG"},
        embedding,
    )


if __name__ == "__main__":
    typer.run(main)
