"""What observers get of an image beside its result."""

from dataclasses import dataclass, field

from gateway.inference.prediction import NO_PREDICTIONS, Predictions
from gateway.ingest.image_formats import Header


@dataclass(slots=True)
class ImageRecord:
    """What an observer may need of an image, beyond its result; it exists only while an observer asks for records."""

    data: bytes = field(repr=False)
    """The uploaded file."""
    info: Header | None = None
    """The header of the image; None if it could not be read."""
    seal: bytes = b""
    """See Backend.seal; b"" if the image was not sent to Triton."""
    best: Predictions = NO_PREDICTIONS
    """The best classes, as many as an observer asks for; none if the result has the scores of all classes."""
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
