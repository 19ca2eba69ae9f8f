"""The interface of the prediction log: it gets each finished result. The service runs without one unless it is set."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from gateway.inference.prediction import NO_PREDICTIONS, Predictions
from gateway.ingest.decoders.pool import Decoders
from gateway.ingest.image_info import ImageInfo

if TYPE_CHECKING:
    from gateway.inference.request_spec import RequestSpec, Result

LOGGED_CLASSES = 5
"""The log keeps the scores of this many best classes, whatever the client selects, so that rows can be compared."""


@dataclass(slots=True)
class ImageRecord:
    """What the prediction log needs of an image, beyond its result; it exists only while there is a log."""

    data: bytes = field(repr=False)
    """The uploaded file."""
    info: ImageInfo | None = None
    """The header of the image; None if it could not be read."""
    seal: bytes = b""
    """See Backend.seal; b"" if the image was not sent to Triton."""
    best: Predictions = NO_PREDICTIONS
    """The LOGGED_CLASSES best classes; none if the result has the scores of all classes."""
    embedding: NDArray[np.float32] | None = None
    """The embedding, fp32 [size], if the model has one and the log keeps it."""
    drift_reference: str = ""
    """See InferResult.drift_reference."""

    @property
    def format(self) -> str:
        """The name of the image's format; "" if it was not recognised."""
        return "" if self.info is None else self.info.format.value


@dataclass(frozen=True, slots=True)
class ShadowClass:
    """The likeliest class of a shadow version."""

    version: str
    class_id: int
    score: float


@dataclass(frozen=True, slots=True)
class Feedback:
    """What a client knows of one image of an earlier request."""

    request_id: str
    index: int
    """Position of the file in that request."""
    model_name: str
    label: str | None
    """The true label; None if the client knows only that the answer is wrong."""
    class_id: int | None
    """The class of the label."""
    key: str
    """The name of the client's API key; "" if no key is required."""
    withdrawn: bool = False
    """Whether it takes back the last feedback for the image."""
    drawn: bool = False
    """Whether the image was chosen at random to be labelled."""


class PredictionLog(Protocol):
    """Takes finished results. No method waits or raises: what the log cannot take is dropped and counted."""

    @property
    def keeps_embeddings(self) -> bool:
        """Whether calls request the embeddings of models that have one."""
        ...

    async def start(self, decoders: Decoders | None = None) -> None:
        """Start; what a start cannot do is retried while the service runs. `decoders` measure a few images."""
        ...

    def offer(self, spec: "RequestSpec", result: "Result") -> None:
        """Take the finished result of one file, which has a `record`; most are not logged."""
        ...

    def offer_disagreement(self, spec: "RequestSpec", result: "Result", shadow: ShadowClass) -> None:
        """Take a result whose likeliest class differs from that of a shadow version."""
        ...

    def add_feedback(self, feedback: Feedback) -> bool:
        """Log a client's feedback; False if the queue is full."""
        ...

    async def close(self) -> None:
        """Write what is in the queue, within a limited time."""
        ...
