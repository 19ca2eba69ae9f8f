"""`python -m bench.calibration`: what `gateway model calibrate` changes on photographs that were not used to fit it.

A network learns from which of nine photographs a crop is: EfficientNet-Lite0 with a new last layer, trained on a few
crops until it knows them by heart. Each photograph has disjoint areas for training, calibration and test, so that no
pixel is in two of them. Everything is served by Triton, as a user's model is.
"""

import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import typer
from PIL import Image, ImageEnhance, ImageFilter
from torch import Tensor, nn

from bench.output import Into, progress, publish, table
from gateway_models.networks.add import add
from gateway_models.networks.add_step import add_step
from gateway_models.networks.export import EFFICIENTNET_LITE0
from gateway_models.proof.calibrate import Calibrated, calibrate, network_scores, scored
from gateway_models.proof.dataset import read_dataset
from gateway_models.proof.evaluate import Evaluation, evaluate
from gateway_models.proof.serving import serving
from gateway_models.repository.preprocessing import reference_transforms
from gateway_models.repository.spec import ModelSpec

PHOTOS = {
    "cat": "skimage/data/chelsea.png",
    "coffee": "skimage/data/coffee.png",
    "astronaut": "skimage/data/astronaut.png",
    "rocket": "skimage/data/rocket.jpg",
    "motorcycle": "skimage/data/motorcycle_left.png",
    "hubble": "skimage/data/hubble_deep_field.jpg",
    "retina": "skimage/data/retina.jpg",
    "china": "sklearn/datasets/images/china.jpg",
    "flower": "sklearn/datasets/images/flower.jpg",
}
"""Photographs in the wheels of scikit-image and scikit-learn, by their labels."""
CELLS = 4
"""Rows and columns of each photograph's grid; a cell belongs to one part."""
PARTS = {"train": (4, 2), "calibration": (6, 6), "test": (6, 6)}
"""Cells of each photograph, and crops of each cell."""
SIDE = 40
EPOCHS = 300


class Head(nn.Module):
    """The network's features and a new last layer: images fp32 [N, 3, 224, 224] → logits [N, photographs]."""

    def __init__(self) -> None:
        super().__init__()
        self.features = next(EFFICIENTNET_LITE0.build().children())
        self.last = nn.Linear(1280, len(PHOTOS))

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.last(self.embeddings(images))
        return logits

    def embeddings(self, images: Tensor) -> Tensor:
        """The input of the last layer, [N, 1280]."""
        maps: Tensor = self.features.extract_features(images)  # type: ignore[operator]
        return maps.mean((2, 3))


def main(into: Into = None) -> None:
    """Print the calibration of a test set before and after."""
    with tempfile.TemporaryDirectory(prefix="calibration-") as name:
        folder = Path(name)
        for part in PARTS:
            progress(f"{part}: {sum(1 for _ in _crops(folder / part, part))} crops")
        spec = _trained(folder)
        entry = add(spec, folder / "models", progress)
        labels = tuple(PHOTOS)
        calibration, test = (read_dataset(folder / part, labels) for part in ("calibration", "test"))
        with serving(folder / "models", ("photos",), progress) as triton:
            found = calibrate(scored(list(network_scores(entry, 1, triton, calibration, None))))
        entry, number = add_step(found.step(None), folder / "models", "photos", None, progress)
        evaluations = [Evaluation(entry.classes, multi_label=False) for _ in (1, number)]
        ensembles = tuple(entry.ensemble_of(version) for version in (1, number))
        with serving(folder / "models", ensembles, progress) as triton:
            for ensemble, evaluation in zip(ensembles, evaluations, strict=True):
                for _ in evaluate(ensemble, triton.address, test, evaluation):
                    pass
    publish(_report(found, evaluations), into, "bench.calibration")


def _crops(folder: Path, part: str) -> Iterator[Path]:
    """Write the crops of a part; those that are not for training are blurred and darkened, as later images are."""
    rng = np.random.default_rng(0)
    for label, source in PHOTOS.items():
        package, _, path = source.partition("/")
        origin = (find_spec(package) or find_spec("skimage")).origin  # type: ignore[union-attr]
        with Image.open(Path(str(origin)).parent / path) as image:
            pixels = image.convert("RGB")
        order = np.random.default_rng(1).permutation(CELLS * CELLS)
        before = sum(PARTS[each][0] for each in list(PARTS)[: list(PARTS).index(part)])
        cells, crops = PARTS[part]
        (folder / label).mkdir(parents=True)
        for cell in order[before : before + cells]:
            width, height = pixels.width // CELLS, pixels.height // CELLS
            for number in range(crops):
                left = int(cell) % CELLS * width + int(rng.integers(0, width - SIDE + 1))
                top = int(cell) // CELLS * height + int(rng.integers(0, height - SIDE + 1))
                crop = pixels.crop((left, top, left + SIDE, top + SIDE))
                if part != "train":
                    crop = crop.filter(ImageFilter.GaussianBlur(float(rng.uniform(0, 2))))
                    crop = ImageEnhance.Brightness(crop).enhance(float(rng.uniform(0.5, 1.2)))
                path_of_crop = folder / label / f"{cell}-{number}.png"
                crop.save(path_of_crop)
                yield path_of_crop


def _trained(folder: Path) -> ModelSpec:
    """Train the last layer on the crops of `train`, and write the network as TorchScript."""
    labels = tuple(PHOTOS)
    samples = read_dataset(folder / "train", labels)
    preprocessing = EFFICIENTNET_LITE0.preprocessing
    assert preprocessing is not None
    transforms = reference_transforms(preprocessing)
    images = torch.stack([transforms(Image.open(sample.path).convert("RGB")) for sample in samples])
    true = torch.tensor([next(iter(sample.classes)) for sample in samples])
    torch.manual_seed(0)
    network = Head().eval()
    with torch.inference_mode():
        embeddings = torch.cat([network.embeddings(batch) for batch in images.split(16)])
    embeddings = embeddings.clone()
    optimizer = torch.optim.Adam(network.last.parameters(), 1e-2)
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network.last(embeddings), true).backward()
        optimizer.step()
    right = (network.last(embeddings).argmax(1) == true).float().mean()
    progress(f"{100 * float(right):.0f} % of {len(true)} training crops are right")
    with torch.inference_mode():
        traced = torch.jit.trace(network, images[:2])
    traced.save(folder / "photos.pt")
    (folder / "labels.txt").write_text("".join(f"{label}\n" for label in labels))
    return ModelSpec(str(folder / "photos.pt"), "photos", folder / "labels.txt", preprocessing=preprocessing)


def _report(found: Calibrated, evaluations: list[Evaluation]) -> str:
    rows = []
    for name, evaluation in zip(("as trained", "calibrated"), evaluations, strict=True):
        calibration = evaluation.calibration()
        assert calibration is not None
        rows.append([name, f"{100 * evaluation.top(1):.1f} %", str(calibration.error), str(calibration.brier)])
    head = f"{len(evaluations[0].answers)} crops of the test, temperature {found.scaling.temperature:.2f}"
    return table([head, "top-1", "expected calibration error", "Brier score"], rows)


if __name__ == "__main__":
    typer.run(main)
