"""Results: of each picture, and of all of them."""

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
class Frame:
    """The answer for one frame of an animated file: predictions, best first, or an error.

    `index` is its number in the file, from 0; `seconds` when it is shown, from the first one on, and None where the
    file could be read no further.
    """

    index: int
    seconds: float | None
    predictions: tuple[Prediction, ...] = ()
    error: GatewayError | None = None

    @property
    def best(self) -> Prediction | None:
        """The most likely class, if there is one."""
        return self.predictions[0] if self.predictions else None


@dataclass(frozen=True, slots=True)
class Result:
    """The answer for one picture: predictions, best first, or an error.

    `index` is the picture's position among those given, from 0. Width and height are upright pixels, None where the
    header could not be read; `version` is None where no model has seen the picture.
    """

    index: int
    name: str
    """The path, or what the picture was called."""
    source: Any = field(repr=False, compare=False)
    """The picture as it was given."""
    width: int | None = None
    height: int | None = None
    predictions: tuple[Prediction, ...] = ()
    error: GatewayError | None = None
    model: str | None = None
    version: str | None = None
    frames: tuple[Frame, ...] = ()
    """Where `frames` were asked for; `predictions` are then those of the first one that has any."""
    embedding: "array[float] | None" = field(default=None, repr=False)
    """The vector that `embed` asks for, as 32-bit floats: `numpy.frombuffer(result.embedding, numpy.float32)`."""

    @property
    def ok(self) -> bool:
        """Whether the picture has an answer."""
        return self.error is None

    @property
    def best(self) -> Prediction | None:
        """The most likely class; None without an answer, and where no class is above the threshold."""
        return self.predictions[0] if self.predictions else None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a call of `classify` has come."""

    done: int
    failed: int
    total: int | None
    """Pictures in all; None where what was given does not say how many it holds."""
    seconds: float

    @property
    def rate(self) -> float:
        """Pictures per second."""
        return self.done / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Model:
    """A model that can be asked."""

    name: str
    version: str | None
    """The version in use."""
    versions: tuple[str, ...]
    ready: bool
    labels: tuple[str, ...] = field(repr=False)
