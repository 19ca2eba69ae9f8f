"""What the service asks of an inference server, and the shapes of its answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gateway.deadline import Deadline
from gateway.errors import GatewayError
from gateway.inference.prediction import NO_PREDICTIONS, Prediction
from gateway.inference.selection import Selection
from gateway.inference.sequence import FrameSequence
from gateway.ingest.resizing import Resize


@dataclass(slots=True)
class Batch:
    """Encoded images, one at least, that travel together."""

    images: Sequence[bytes]
    seals: Sequence[bytes] = ()
    """A code of each image, once the backend has sealed them: see gateway.triton.seal."""

    def __len__(self) -> int:
        return len(self.images)


class Vectors(Enum):
    """Whether the vectors of images are wanted beside their classes."""

    NONE = "none"
    IF_ANY = "if any"
    """Of a model that gives some."""
    NEEDED = "needed"
    """NoFeatures is raised where the model gives none."""


@dataclass(frozen=True, slots=True)
class Call:
    """One batch and what is asked of a model about it."""

    batch: Batch
    model_name: str
    model_version: str
    """"" for the version in use."""
    selection: Selection | None
    """Which classes to report for each image; None for every class's score as it left the model, without labels."""
    deadline: Deadline
    request_id: str
    run_to_completion: bool = False
    """Of a call that must not be cancelled: whether to return when it has really ended, and not at the deadline."""
    vectors: Vectors = Vectors.NONE
    best_effort: bool = False
    """Whether no client waits for the answer: it is asked for once, of a server that is known to answer, and what comes
    of it is held neither for nor against servers, models and images."""


@dataclass(frozen=True, slots=True)
class Row:
    """The answer for one image of a batch: predictions by falling score, or `decoded` False or an `error` and none."""

    decoded: bool
    predictions: Sequence[Prediction] = NO_PREDICTIONS
    scores: NDArray[np.float32] | None = None
    """In place of predictions, where a request has no selection: fp32 [classes], by class id."""
    error: GatewayError | None = None
    """Why this image alone has no answer."""
    vector: NDArray[np.float32] | None = None
    """fp32 [size], where the call wants it and the model gives one."""


@dataclass(frozen=True, slots=True)
class InferResult:
    """One row for each image of the batch, in its order."""

    model_name: str
    model_version: str
    rows: tuple[Row, ...]
    multi_label: bool = False
    """Whether each class has a probability of its own."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model that keeps the contract RAW_IMAGE, RAW_IMAGE_LENGTH → PREDICTION, IMAGE_STATUS, and maybe FEATURES."""

    name: str
    versions: tuple[str, ...]
    """Those that can be asked for."""
    ready: bool
    classes: int
    version: str = ""
    """The one in use: it answers who names none."""
    precision: str | None = None
    """fp32, bf16 or fp16, where the model says."""
    multi_label: bool = False
    """Whether each class has a probability of its own."""
    decode: str = "exact"
    """How large JPEGs are decoded: exact, or fast where the model says so."""
    tensor: str | None = None
    """What the network gets: fp32 that is normalised, or uint8 pixels; None where that is neither."""
    labels: tuple[str, ...] = ()
    input_height: int | None = None
    input_width: int | None = None
    resize_size: tuple[int, ...] = ()
    """Pixels to which the preprocessor resizes: height and width, or the shorter side; () where it does not say."""
    crop_size: tuple[int, ...] = ()
    """Pixels that it then cuts from the middle: height and width, or one for both; () where it does not say."""
    reason: str | None = None
    """Why the model is not ready, where Triton says so."""
    vector_size: int = 0
    """How many numbers the vectors of FEATURES have; 0 where the model gives none."""
    steps: tuple[str, ...] = field(default=())
    """The models that the ensemble runs, in order."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One inference that was tried: when (UTC), how many seconds it took, and what went wrong, if anything did."""

    at: datetime
    seconds: float
    error: GatewayError | None


@dataclass(frozen=True, slots=True)
class ModelState:
    """A model's version in the server's own words, such as LOADING or UNAVAILABLE, and the reason it gives."""

    name: str
    version: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class ModelHealth:
    """What is known of one model of one server."""

    name: str
    ready: bool
    last_probe: ProbeResult | None


@dataclass(frozen=True, slots=True)
class EndpointHealth:
    """What is known of one server: whether a real inference lately succeeded there, and what is being done if not."""

    address: str
    ready: bool
    """Of the default model."""
    last_probe: ProbeResult | None
    models_not_ready: tuple[ModelState, ...] = ()
    warnings: tuple[str, ...] = ()
    healing: str = "off"
    models: tuple[ModelHealth, ...] = ()
    """Each model that is watched, the default one first."""


class Backend(Protocol):
    """One or several inference servers. Every method raises errors of gateway.errors only."""

    @property
    def supports_cancellation(self) -> bool:
        """Whether an `infer` may be cancelled without harm to the server."""
        ...

    async def start(self) -> None:
        """Connect; an unreachable server is not an error."""
        ...

    def health(self) -> Sequence[EndpointHealth]:
        """What is known of each server, without asking it."""
        ...

    async def infer(self, call: Call) -> InferResult:
        """Classify a batch.

        Returns or raises by the deadline, unless the call is asked `run_to_completion` of a server that does not bear
        cancellation.

        Raises ModelNotFound, NoFeatures, ModelUnavailable, TritonUnreachable, Overloaded, DeadlineExceeded or
        InferenceFailed, and what the selection raises.
        """
        ...

    async def models(self) -> Sequence[ModelInfo]:
        """Every model that keeps the contract."""
        ...

    async def model(self, name: str) -> ModelInfo:
        """One of `models`; raises ModelNotFound, or ModelUnavailable for one that should be there."""
        ...

    async def labels(self, model_name: str, model_version: str) -> Sequence[str]:
        """The labels of one version's classes, by class id; raises what `infer` raises."""
        ...

    async def resize(self, model_name: str, model_version: str) -> Resize | None:
        """How one version's images are resized, if that can be done before they go; raises what `infer` raises."""
        ...

    async def sequence(self, model_name: str, model_version: str) -> FrameSequence:
        """A new sequence of frames for the stateful model that goes with a model; raises ModelNotFound without one."""
        ...

    async def load(self, name: str) -> None:
        """Have every server load a model, or take up what has changed in its files; the old one answers meanwhile.

        Raises ModelNotFound, LoadFailed or TritonUnreachable.
        """
        ...

    async def unload(self, name: str) -> None:
        """Have every server let go of a model; raises ModelNotFound, LoadFailed or TritonUnreachable."""
        ...

    async def close(self) -> None:
        """Give back connections."""
        ...
