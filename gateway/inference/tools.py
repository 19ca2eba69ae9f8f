"""What all requests share."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.inference.backend import Backend
from gateway.inference.uncancelled import Uncancelled
from gateway.ingest.inspection import DecodePolicy
from gateway.limits.admission import Admission

if TYPE_CHECKING:
    from gateway.ingest.decoders.pool import Decoders


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of calls: `max_images` and `max_bytes` in each, and `max_calls` with images of one request at once."""

    max_images: int
    max_bytes: int
    max_calls: int


@dataclass(frozen=True, slots=True)
class Tools:
    """The parts of the service with which images are read, admitted, decoded and classified."""

    backend: Backend
    admission: Admission
    policy: DecodePolicy
    batches: BatchLimits
    decoders: "Decoders"
    uncancelled: Uncancelled = field(default_factory=Uncancelled)
    """Work that may outlive its request: calls, and work that cannot be cancelled."""
