"""Results of single images, and models."""

from array import array
from dataclasses import dataclass, field
from typing import Any

from gateway_client.errors import GatewayError


@dataclass(frozen=True, slots=True)
class Prediction:
    """One class and its probability."""

    label: str
    class_id: int
    score: float


@dataclass(frozen=True, slots=True)
class Result:
    """The result for one image: predictions, best first, or an error.

    `index` is the image's position in the input, from 0. Width and height are in pixels after EXIF orientation, None if
    the header could not be read; `version` is None if no model has processed the image.
    """

    index: int
    name: str
    """The path, or the name that the caller gave."""
    source: Any = field(repr=False, compare=False)
    """The image as the caller passed it."""
    width: int | None = None
    height: int | None = None
    predictions: tuple[Prediction, ...] = ()
    error: GatewayError | None = None
    model: str | None = None
    version: str | None = None
    embedding: "array[float] | None" = field(default=None, repr=False)
    """The result of `embed`, as 32-bit floats: `numpy.frombuffer(result.embedding, numpy.float32)`."""
    warning: str | None = None
    """"damaged" for a damaged JPEG: some of the pixels that the model saw are wrong."""

    @property
    def ok(self) -> bool:
        """Whether the image has a result without an error."""
        return self.error is None

    @property
    def best(self) -> Prediction | None:
        """The most likely class; None after an error, or if no class reaches the threshold."""
        return self.predictions[0] if self.predictions else None


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the service."""

    name: str
    version: str | None
    """The version in use: it answers requests that name no version, or most of them."""
    versions: tuple[str, ...]
    ready: bool
    labels: tuple[str, ...] = field(repr=False)
    default: bool = False
    """Whether it answers requests that name no model."""
