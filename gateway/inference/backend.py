"""The interface of an inference server: calls, descriptions of models, health."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict

from gateway.errors import GatewayError
from gateway.inference.result import Row, Selection
from gateway.ingest.resizing import Resize, TensorInput
from gateway.timing import Deadline
from gateway.values.rollout import Rollout

Parameters = Mapping[str, str | int | float]
"""Parameters of the stateful model, by name, sent with each frame."""


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """One request of a sequence to a stateful model: a frame's scores, fp32 [classes], or the end of the sequence."""

    model_name: str
    sequence_id: int
    scores: NDArray[np.float32]
    parameters: Parameters
    deadline: Deadline
    request_id: str
    start: bool = False
    end: bool = False


@dataclass(frozen=True, slots=True)
class SequenceScores:
    """The scores of a sequence so far."""

    scores: NDArray[np.float32]
    """fp32 [classes]."""
    frames: int
    """The number of frames so far."""
    restarted: bool = False
    """Whether the sequence begins with this frame, since the server that had the earlier ones has failed."""


class FrameSequence(Protocol):
    """The frames of one stream, in order; one call at a time. Every method raises errors of gateway.errors only."""

    async def add(
        self, scores: NDArray[np.float32], parameters: Parameters, deadline: Deadline, request_id: str
    ) -> SequenceScores:
        """Add the next frame's scores, fp32 [classes]; raises what `Backend.infer` raises."""
        ...

    async def close(self) -> None:
        """End the sequence and release its state; raises nothing."""
        ...


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model that classifies images."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        use_attribute_docstrings=True, json_schema_serialization_defaults_required=True
    )

    name: str
    versions: tuple[str, ...]
    """The versions that requests can name."""
    ready: bool
    classes: int
    version: str = ""
    """The version in use: it answers requests that name no version, or most of them."""
    shares: dict[str, int] = field(default_factory=dict)
    """The versions that answer requests which name none, each with its share of them."""
    shadow: dict[str, int] = field(default_factory=dict)
    """The versions that classify a percentage of the images as well, after the answer."""
    since: datetime | None = None
    """When that was last changed; null if the model's record does not say."""
    by: str | None = None
    """Whose change it was: the name of an admin key, or of a user of the machine with the repository."""
    precision: str | None = None
    """Number format of the network: fp32, bf16 or fp16."""
    multi_label: bool = False
    """Whether each class has an independent probability, so that an image can have several classes."""
    decode: str = "exact"
    """How large JPEGs are decoded: exact, with the same pixels as in training, or fast."""
    tensor: str | None = None
    """The tensor from the preprocessor to the network: normalised fp32, or the pixels as uint8."""
    labels: tuple[str, ...] = ()
    input_height: int | None = None
    input_width: int | None = None
    resize_size: tuple[int, ...] = ()
    """Size that images are resized to: height and width, or the length of the shorter side; empty if unknown."""
    crop_size: tuple[int, ...] = ()
    """Size of the centre crop after that: height and width, or one length for both; empty if unknown."""
    reason: str | None = None
    """Why it is not ready."""
    embedding_size: int = 0
    """Length of the embeddings of `POST /embed`; 0 if the model has none."""
    runtime: str | None = None
    """What runs the network: onnxruntime, torchscript, openvino, libtorch, tensorrt or python."""
    steps: tuple[str, ...] = ()
    """The models that the ensemble runs, in order."""
    limitations: tuple[str, ...] = ()
    """What the model lacks of the gateway's contract, and what that costs; empty for a complete one."""
    after: str | None = None
    """What the step after the network does, such as `temperature 1.8` for calibrated scores; null if there is none."""
    description: str | None = None
    """What it is, in a sentence, as `gateway model add --description` wrote it; null if that is not known."""
    loaded: bool = True
    """Whether a Triton has loaded it. With models on demand, a request for another one waits while it loads."""


class Embeddings(Enum):
    """Whether the embeddings of images are returned with their classes."""

    NONE = "none"
    IF_ANY = "if any"
    """If the model has embeddings."""
    NEEDED = "needed"
    """NoFeatures is raised if the model has no embeddings."""


@dataclass(slots=True)
class Call:
    """Encoded images, at least one, the model, and the parameters of the call."""

    images: Sequence[bytes]
    model_name: str
    model_version: str
    """"" for the version in use."""
    selection: Selection | None
    """Which classes to return for each image; None for the model's score of every class, without labels."""
    deadline: Deadline
    request_id: str
    signatures: Sequence[bytes] = ()
    """A code for each image, see Backend.sign; only probes have none."""
    run_to_completion: bool = False
    """For a call that must not be cancelled: return when it has ended, even after the deadline."""
    embeddings: Embeddings = Embeddings.NONE
    least_classes: int = 0
    """The number of best classes in each row's `best`, regardless of the selection."""
    best_effort: bool = False
    """Whether no client waits for the result: the call is sent once, to a ready server, without retries, and its result
    does not affect the health of servers and models."""

    def of(self, numbers: Sequence[int]) -> "Call":
        """The same call for some of its images."""
        signatures = [self.signatures[number] for number in numbers] if self.signatures else ()
        return replace(self, images=[self.images[number] for number in numbers], signatures=signatures)


@dataclass(frozen=True, slots=True)
class CallLimits:
    """How many calls keep the servers of a model busy, and how many images one of them may have."""

    calls: int
    images: int


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of calls: `max_images` and `max_bytes` in each, and `max_calls` at a time with images of one request."""

    max_images: int
    max_bytes: int
    max_calls: int


PROBE_SECONDS = 5.0
"""Longest time of a probe."""


@dataclass(frozen=True, slots=True)
class ModelState:
    """The state of a model's version, such as LOADING or UNAVAILABLE, and the server's reason."""

    name: str
    version: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class ModelHealth:
    """The health of one model of one server, and the result of its last probe."""

    name: str
    ready: bool
    tried_at: datetime | None = None
    """When the last probe was sent; None before the first."""
    took_seconds: float | None = None
    error: GatewayError | None = None
    sizes: tuple[str, ...] = ()
    """The instances of each step, and where their number comes from, in words."""


@dataclass(frozen=True, slots=True)
class EndpointHealth:
    """The health of one server; the members up to `error` describe the default model."""

    triton: str
    """Its address."""
    ready: bool
    tried_at: datetime | None = None
    took_seconds: float | None = None
    error: GatewayError | None = None
    models_not_ready: tuple[ModelState, ...] = ()
    warnings: tuple[str, ...] = ()
    models: tuple[ModelHealth, ...] = ()
    """Each probed model, the default model first."""
    healing: str = "off"
    """The state of recovery."""


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
        """The last known health of each server, without a call."""
        ...

    def sign(self, image: bytes) -> bytes:
        """A code that identifies an image; may be called on any thread."""
        ...

    def needs_own_call(self, signature: bytes, model_name: str, model_version: str) -> bool:
        """Whether an image must have its own call.

        This is so if a response cache may hold its result, as the key is the whole call, or if it may crash a process.
        """
        ...

    def call_limits(self, model_name: str, model_version: str, max_images: int) -> CallLimits | None:
        """The limits of calls with up to `max_images`; None if they are not known, such as before the first call."""
        ...

    def rollout(self, model_name: str) -> Rollout | None:
        """Which versions of a model answer, as last read, without a call; None of a model with one version."""
        ...

    async def infer(self, call: Call) -> Sequence[Row]:
        """Classify the images of a call: a row for each, in their order.

        Returns or raises by the deadline, except for a call with `run_to_completion` to a server that does not support
        cancellation.

        Raises ModelNotFound, NoFeatures, ModelUnavailable, TritonUnreachable, Overloaded, DeadlineExceeded or
        InferenceFailed, and what the selection raises.
        """
        ...

    async def models(self) -> "Sequence[ModelInfo]":
        """Every model that keeps the contract."""
        ...

    async def model(self, name: str) -> "ModelInfo":
        """One of `models`; raises ModelNotFound, or ModelUnavailable for an expected model."""
        ...

    async def labels(self, model_name: str, model_version: str) -> Sequence[str]:
        """The labels of one version's classes, by class id; raises what `infer` raises."""
        ...

    async def resize(self, model_name: str, model_version: str) -> Resize | None:
        """How one version's images are resized; None if that cannot be done in advance; raises what `infer` raises."""
        ...

    def tensor_input(self, model_name: str) -> TensorInput | None:
        """How a decoder makes the input of a model that takes tensors; None of one that decodes files itself."""
        ...

    async def sequence(self, model_name: str, model_version: str) -> FrameSequence:
        """A new sequence of frames for the stateful model of a model; raises ModelNotFound if it has none."""
        ...

    async def add_to_sequence(self, model_name: str, model_version: str, step: SequenceStep) -> SequenceScores:
        """Add an image to a client's own sequence, or end it; `step` names no stateful model, which the model has.

        Raises SequenceUnknown, ModelNotFound if there is no stateful model, and what `infer` raises.
        """
        ...

    async def statistics(self, model_name: str, model_version: str) -> bytes:
        """One server's statistics of a model since it was loaded: a serialised ModelStatisticsResponse.

        Raises what `infer` raises.
        """
        ...

    async def load(self, name: str) -> None:
        """Load a model on every server, or reload it if its files have changed; the old instances answer meanwhile.

        Raises ModelNotFound, LoadFailed or TritonUnreachable.
        """
        ...

    async def unload(self, name: str) -> None:
        """Unload a model on every server; raises ModelNotFound, LoadFailed or TritonUnreachable."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...
