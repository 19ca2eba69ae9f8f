"""`gateway model verify`: the served answers against the original model's through the reference transforms.

Both ways have three stages, and the difference between their answers is the sum of three, each from one stage:

    served:     gateway and OpenCV decode → the preprocessor resizes, crops, normalises → the served network
    reference:  PIL decodes               → the original's own preprocessing             → the original network

    decode = original(preprocessor(the file)) - original(preprocessor(PIL's pixels))
    resize = original(preprocessor(PIL's pixels)) - original(its own preprocessing of PIL's pixels)
    model  = served(the file) - original(preprocessor(the file))

The original's own preprocessing is the code of transformers or timm if the model's source has it, else torchvision's
transforms with the user's values.

Embeddings are compared with the original's by their cosine.
"""

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from gateway.triton.configs import ModelInstanceGroup
from gateway_models.blocking_triton import BlockingTriton, TritonRefused
from gateway_models.networks.embeddings import embedding_difference
from gateway_models.networks.originals import Answers, original_answers
from gateway_models.networks.pretrained import processor
from gateway_models.proof.dataset import Sample
from gateway_models.proof.evaluate import Answered, Probabilities, predict_each
from gateway_models.proof.image_files import NotCompared, reader, resize_for
from gateway_models.repository.entry import Entry
from gateway_models.repository.spec import Decode

TOLERANCE = 1e-3
STAGES = ("decode", "resize", "model")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One image's answers, served and expected, and each stage's part of their difference: fp32 [classes]."""

    path: Path
    served: Probabilities
    expected: Probabilities
    stages: dict[str, Probabilities]
    embeddings: tuple[Probabilities, Probabilities] | None = None
    """The served and the expected one, fp32 [size]."""

    @property
    def same_top1(self) -> bool:
        """Whether both have the same top-1 class."""
        return int(self.served.argmax()) == int(self.expected.argmax())

    @property
    def largest(self) -> float:
        """The largest difference of a probability."""
        return _largest(self.served - self.expected)

    def from_stage(self, stage: str) -> float:
        """The largest difference of a probability that comes from one stage."""
        return _largest(self.stages[stage])


@dataclass(frozen=True, slots=True)
class Parity:
    """All comparisons of a run."""

    comparisons: Sequence[Comparison]
    refused: Sequence[NotCompared]
    on_gpu: bool = False
    """Whether the served network ran on a GPU; the original always runs on the CPU."""

    @property
    def top1_agreement(self) -> float:
        """The share of images with the same top-1 class; 0 if there are no images."""
        return sum(each.same_top1 for each in self.comparisons) / max(1, len(self.comparisons))

    @property
    def largest(self) -> float:
        """The largest difference of a probability in any image; 0 if there are no images."""
        return max((each.largest for each in self.comparisons), default=0.0)

    @property
    def embeddings(self) -> Sequence[tuple[Probabilities, Probabilities]]:
        """The embeddings of all images; empty if the model gives none."""
        return [each.embeddings for each in self.comparisons if each.embeddings is not None]

    @property
    def least_cosine(self) -> float:
        """The smallest cosine of an embedding and the original's; 1 if there are none, or both are zero."""
        if not self.embeddings:
            return 1.0
        served, expected = (torch.from_numpy(np.stack(side)) for side in zip(*self.embeddings, strict=True))
        return 1 - embedding_difference([served], [expected])

    def from_stage(self, stage: str) -> float:
        """The largest difference of a probability that comes from one stage in any image."""
        return max((each.from_stage(stage) for each in self.comparisons), default=0.0)

    def holds(self, tolerance: float) -> bool:
        """Whether images were compared, and all probabilities and cosines are within the tolerance."""
        return bool(self.comparisons) and self.largest <= tolerance and 1 - self.least_cosine <= tolerance


def compare_served(
    entry: Entry,
    version: int,
    triton: BlockingTriton,
    paths: Iterable[Path],
    decode: Decode | None = None,
    original: Answers | None = None,
) -> Iterator[Comparison | NotCompared]:
    """Have a Triton classify each file, one at a time, and compare the answers and their stages with the original's.

    `original` is the version's, if it is loaded already. Raises UserError if it is missing, or is another model's.
    """
    samples, resize = [Sample(path, frozenset()) for path in paths], resize_for(entry, decode)
    original = original or original_answers(entry.versions[version])
    prepare, read = processor(entry.versions[version].spec), reader(resize)
    for answer in predict_each((entry.ensemble_of(version),), triton.address, samples, resize, batch=1):
        if isinstance(answer, NotCompared):
            yield answer
            continue
        path, (served,) = answer.sample.path, answer.scores
        try:
            image = pil_image(path)
        except OSError as exc:
            yield NotCompared(path, f"PIL does not read it: {exc}")
            continue
        reference = prepare(image)
        expected, wanted = _answer(original, reference)
        _check_same_model(answer, expected, wanted)
        if isinstance(encoded := read(path), NotCompared):  # it has changed
            yield encoded
            continue
        prepared = triton.preprocess(entry.preprocessor, [encoded, as_ppm(image)]).values
        of_file, of_pixels = normalised(prepared, entry)
        # Usually the images are bit-identical to the reference and need no second run.
        by_pixels = expected if np.array_equal(of_pixels, reference) else _answer(original, of_pixels)[0]
        by_file = by_pixels if np.array_equal(of_file, of_pixels) else _answer(original, of_file)[0]
        stages = {"decode": by_file - by_pixels, "resize": by_pixels - expected, "model": served - by_file}
        pair = None if wanted is None or answer.embedding is None else (answer.embedding, wanted)
        yield Comparison(path, served, expected, stages, pair)


def runs_on_gpu(entry: Entry, triton: BlockingTriton) -> bool:
    """Whether Triton runs an entry's network on a GPU; raises TritonRefused."""
    # The server's configuration, in which KIND_AUTO has been replaced by the actual kind.
    groups = triton.config(entry.classifier).instance_group
    return any(group.kind == ModelInstanceGroup.KIND_GPU for group in groups)


def pil_image(path: Path) -> Image.Image:
    """The reference decoding of an image file with Pillow, which the service must match; raises OSError."""
    with Image.open(path) as image:
        return shown(image)


def shown(image: Image.Image) -> Image.Image:
    """The first frame as RGB of 8 bits, upright.

    As torchvision's datasets read it (`convert("RGB")`), with two deliberate exceptions: white
    shows through transparent pixels, and 16-bit gray is scaled, where Pillow clips it at 255.
    """
    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I;16"):
        upright = Image.fromarray((np.asarray(upright) / 257).round().astype(np.uint8))
    elif upright.has_transparency_data:
        white = Image.new("RGBA", upright.size, (255, 255, 255, 255))
        upright = Image.alpha_composite(white, upright.convert("RGBA"))
    return upright.convert("RGB")


def as_ppm(image: Image.Image) -> bytes:
    """Encode an image as PPM, which every decoder reads identically."""
    file = io.BytesIO()
    image.save(file, "PPM")
    return file.getvalue()


def normalised(images: NDArray[np.float32] | NDArray[np.uint8], entry: Entry) -> NDArray[np.float32]:
    """A preprocessor's output as fp32 for the original; uint8 pixels are normalised as torchvision does."""
    if images.dtype != np.uint8:
        return np.asarray(images, np.float32)
    mean, std = (torch.tensor(values)[:, None, None] for values in (entry.spec.prepared.mean, entry.spec.prepared.std))
    values: NDArray[np.float32] = torch.tensor(images).float().div(255).sub(mean).div(std).numpy()
    return values


def _answer(original: Answers, image: Probabilities) -> tuple[Probabilities, Probabilities | None]:
    """The original's answer for one image; in a batch, sums may be computed in another order."""
    scores, embeddings = original(torch.tensor(image[None]))
    return scores[0].numpy(), None if embeddings is None else embeddings[0].numpy()


def _check_same_model(answer: Answered, expected: Probabilities, wanted: Probabilities | None) -> None:
    (served,), embedding = answer.scores, answer.embedding
    if len(served) != len(expected) or (wanted is not None and (embedding is None or len(embedding) != len(wanted))):
        raise TritonRefused(
            f"the service gives {_sizes(served, embedding)}, and the original {_sizes(expected, wanted)}: "
            "is it another model?"
        )


def _sizes(scores: Probabilities, embedding: Probabilities | None) -> str:
    return f"{len(scores)} classes{f' and embeddings of {len(embedding)} numbers' if embedding is not None else ''}"


def _largest(difference: Probabilities) -> float:
    return float(np.abs(difference).max())
