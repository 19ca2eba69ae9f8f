"""`python -m bench.explain`: how faithful heat maps are, by deletion and insertion (Petsiuk et al., 2018).

Deletion hides an image's pixels from the hottest on, and insertion shows them, in that order, on a blurred image. Each
is the mean score of the likeliest class on the way: a faithful map has a low one for deletion, and a high one for
insertion. Random maps, as smooth as those of the masks, are what a map without any knowledge reaches.
"""

import io
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from bench.output import Into, progress, publish, table
from bench.repository import RECIPES, repository
from bench.services import gateway_up
from gateway.triton.contract import ENSEMBLE_MODEL
from gateway_models.networks.export import Recipe
from gateway_models.proof.attributions import grad_cam, integrated_gradients
from gateway_models.proof.explain import explain_by_masks, spread
from gateway_models.proof.over_http import OverHttp
from gateway_models.repository.preprocessing import reference_transforms

PHOTOS = {
    "chelsea": "skimage",
    "coffee": "skimage",
    "rocket": "skimage",
    "astronaut": "skimage",
    "camera": "skimage",
    "china.jpg": "sklearn",
    "flower.jpg": "sklearn",
}
"""Photographs in the wheels of scikit-image and scikit-learn."""
SHORTER_SIDE = 256
STEPS = 28
"""Images of each curve, besides the whole one."""
BLUR_PIXELS = 12
RANDOM_MAPS = 5
RANDOM_CELLS = 8
RANDOM = "random map"

Map = NDArray[np.float32]
Pixels = NDArray[np.uint8]
Score = Callable[[Pixels], float]


def main(
    model: Annotated[str, typer.Option(help=", ".join(RECIPES))] = "efficientnet-lite0",
    masks: Annotated[int, typer.Option(help="Masked copies for rise.", min=10)] = 500,
    into: Into = None,
) -> None:
    """Print the area under both curves for each method, and on how many photographs it beats random maps."""
    recipe = RECIPES[model]
    deletion: dict[str, list[float]] = {}
    insertion: dict[str, list[float]] = {}
    with (
        repository(model, (), progress) as models,
        gateway_up(models, settings={"max_masks": max(masks, 2_000)}) as service,
        OverHttp(service.url, ENSEMBLE_MODEL, 1) as client,
    ):
        for name, image in _photographs():
            progress(name)
            pixels = np.asarray(image)
            class_id = int(client.scores(_png(pixels)).argmax())

            def score(shown: Pixels, class_id: int = class_id) -> float:
                return float(client.scores(_png(shown))[class_id])

            for method, maps in _maps(image, class_id, recipe, service.url, masks).items():
                orders = [_order(each, image.size) for each in maps]
                hidden, blurred = _mean_colour(pixels), _blurred(image)
                deleted = [curve(pixels, hidden, order, score) for order in orders]
                inserted = [curve(blurred, pixels, order, score) for order in orders]
                deletion.setdefault(method, []).append(float(np.mean(deleted)))
                insertion.setdefault(method, []).append(float(np.mean(inserted)))
    publish(_report(deletion, insertion), into, "bench.explain")


def _photographs() -> Iterator[tuple[str, Image.Image]]:
    import skimage.data
    import sklearn.datasets

    for name, package in PHOTOS.items():
        pixels = sklearn.datasets.load_sample_image(name) if package == "sklearn" else getattr(skimage.data, name)()
        image = Image.fromarray(np.ascontiguousarray(pixels)).convert("RGB")
        scale = SHORTER_SIDE / min(image.size)
        yield name, image.resize((round(image.width * scale), round(image.height * scale)))


def _maps(image: Image.Image, class_id: int, recipe: Recipe, url: str, masks: int) -> Mapping[str, list[Map]]:
    """The maps of each method for a class; several random ones."""
    found: dict[str, list[Map]] = {}
    with tempfile.NamedTemporaryFile(suffix=".png") as file:
        image.save(file, "PNG")
        file.flush()
        rise: dict[str, str | int] = {"method": "rise", "masks": masks}
        for name, parameters in ((f"rise, {masks} masks", rise), ("occlusion, 14 × 14", {"method": "occlusion"})):
            asked: dict[str, str | int] = {**parameters, "class_id": class_id, "timeout": 300}
            found[name] = [explain_by_masks(url, Path(file.name), asked, None, lambda *_: None).values]
    assert recipe.preprocessing is not None
    network, tensor = recipe.build().eval(), reference_transforms(recipe.preprocessing)(image)[None]
    for name, method in (("grad-cam", grad_cam), ("integrated gradients", integrated_gradients)):
        found[name] = [spread(method(network, tensor, class_id), image.size, recipe.preprocessing)]
    generator = np.random.default_rng(0)
    found[RANDOM] = [generator.random((RANDOM_CELLS,) * 2, np.float32) for _ in range(RANDOM_MAPS)]
    return found


def _order(values: Map, size: tuple[int, int]) -> NDArray[np.int64]:
    """The pixels of an image of `size` (width, height) from the hottest to the coldest, as indices."""
    large = Image.fromarray(np.ascontiguousarray(values)).resize(size, Image.Resampling.BICUBIC)
    order: NDArray[np.int64] = np.argsort(-np.asarray(large).reshape(-1), kind="stable")
    return order


def curve(before: Pixels, after: Pixels, order: NDArray[np.int64], score: Score) -> float:
    """The area under the scores while the pixels of one image become those of another, in an order; from 0 to 1."""
    shown = before.reshape(-1, 3).copy()
    target = after.reshape(-1, 3)
    scores = [score(before)]
    for part in np.array_split(order, STEPS):
        shown[part] = target[part]
        scores.append(score(shown.reshape(before.shape)))
    return float(np.trapezoid(scores, dx=1 / STEPS))


def _mean_colour(pixels: Pixels) -> Pixels:
    mean = np.rint(pixels.mean(axis=(0, 1))).astype(np.uint8)
    return np.broadcast_to(mean, pixels.shape)


def _blurred(image: Image.Image) -> Pixels:
    return np.asarray(image.filter(ImageFilter.GaussianBlur(BLUR_PIXELS)))


def _png(pixels: Pixels) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()


def _report(deletion: Mapping[str, list[float]], insertion: Mapping[str, list[float]]) -> str:
    rows = []
    for method, lows in deletion.items():
        highs = insertion[method]
        figures = [f"{np.mean(lows):.3f}", f"{np.mean(highs):.3f}"]
        if method == RANDOM:
            better = ["", ""]
        else:
            below = sum(one < other for one, other in zip(lows, deletion[RANDOM], strict=True))
            above = sum(one > other for one, other in zip(highs, insertion[RANDOM], strict=True))
            better = [f"{below} of {len(lows)}", f"{above} of {len(highs)}"]
        rows.append([method, figures[0], better[0], figures[1], better[1]])
    return table(["", "deletion", "below random", "insertion", "above random"], rows)


if __name__ == "__main__":
    typer.run(main)
