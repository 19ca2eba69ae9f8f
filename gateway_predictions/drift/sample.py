"""Samples of images, with the properties of each image whose distributions are compared."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

MOST_IMAGES = 1_000
"""Images of a sample at most: enough to find a Kolmogorov–Smirnov distance of 0.1, in seconds."""
SCORE, ENTROPY, PIXELS, BRIGHTNESS, SHARPNESS = "score", "entropy", "pixels", "brightness", "sharpness"
NUMBERS = (SCORE, ENTROPY, PIXELS, BRIGHTNESS, SHARPNESS)
"""Properties that are numbers: the best score, the entropy, and those of the image."""
CLASS, FORMAT = "class", "format"
NAMES = (CLASS, FORMAT)
"""Properties that are one of several names: the best class, by its number, and the format of the file."""
EMBEDDING = "embedding"
DECIMALS = 3
"""Decimals of scores and entropies. Triton gives scores as text of 6 decimals or as numbers; rounded, they agree."""


@dataclass(frozen=True, slots=True)
class LoggedImage:
    """One image; None where a property is not known."""

    request: str
    """Images with the same text were sent together, and may resemble each other."""
    numbers: Mapping[str, float | None]
    names: Mapping[str, str | None]
    embedding: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class WindowSample:
    """The columns of some images."""

    numbers: Mapping[str, NDArray[np.float64]]
    """The values of NUMBERS, NaN where unknown: [images]."""
    names: Mapping[str, NDArray[np.object_]]
    """The values of NAMES, None where unknown: [images]."""
    embeddings: NDArray[np.float32]
    """[images, size], NaN where unknown; the size is 0 if none is known."""
    blocks: NDArray[np.int64]
    """The number of each image's request, from 0: [images]."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """The labels of classes, as far as they are known."""

    def __len__(self) -> int:
        return len(self.blocks)


def sample_of(images: Sequence[LoggedImage], labels: Mapping[str, str] | None = None) -> WindowSample:
    """The sample of some images. Embeddings of another size than most have count as unknown."""
    known = Counter(len(each.embedding) for each in images if each.embedding is not None)
    size = known.most_common(1)[0][0] if known else 0
    embeddings = np.full((len(images), size), np.nan, np.float32)
    for row, each in zip(embeddings, images, strict=True):
        if each.embedding is not None and len(each.embedding) == size:
            row[:] = each.embedding
    requests = {name: number for number, name in enumerate(dict.fromkeys(each.request for each in images))}
    return WindowSample(
        {name: np.array([_number(name, each.numbers.get(name)) for each in images], np.float64) for name in NUMBERS},
        {name: np.array([each.names.get(name) for each in images], object) for name in NAMES},
        embeddings,
        np.array([requests[each.request] for each in images], np.int64),
        labels or {},
    )


def order_of(request_id: str) -> bytes:
    """A key for a random choice of requests that is always the same."""
    return hashlib.blake2b(request_id.encode(), digest_size=8).digest()


def _number(name: str, value: float | None) -> float:
    if value is None:
        return float("nan")
    # The log has numbers of 32 bits.
    return round(value, DECIMALS) if name in {SCORE, ENTROPY} else float(np.float32(value))
