"""Stream parameters."""

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from gateway.api.parameters import ModelName, ModelVersion, TimeoutSeconds, TopK


class Smoothing(StrEnum):
    """How the scores of a sequence are computed from those of its frames."""

    EXPONENTIAL = "exponential"
    NONE = "none"
    """There is no sequence."""


class Drop(StrEnum):
    """What happens to frames that arrive faster than they are classified."""

    OLDEST = "oldest"
    NEVER = "never"


class StreamParameters(BaseModel):
    """The parameters of `WS /stream`, in the query."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    model: ModelName = None
    """A model of `GET /models`; the default is a setting."""
    version: ModelVersion = None
    """A version of the model; default: the version in use."""
    top_k: TopK = None
    """Predictions for each frame and for the sequence, best first."""
    threshold: Annotated[float | None, Field(ge=0, le=1, allow_inf_nan=False)] = None
    """Only classes with at least this score."""
    labels: Annotated[list[str], Field(max_length=1_000)] = []
    """Only classes with these labels."""
    timeout: TimeoutSeconds = None
    """Deadline of a frame in seconds, from the start of its classification."""
    smoothing: Smoothing = Smoothing.EXPONENTIAL
    """How the sequence's scores are computed: exponential, or none for no sequence."""
    alpha: Annotated[float, Field(gt=0, le=1)] = 0.3
    """The weight of the newest frame."""
    margin: Annotated[float, Field(ge=0, le=1)] = 0.15
    """How far another class must lead in the sequence before it replaces the first one."""
    drop: Drop = Drop.OLDEST
    """Which frames are dropped if too many wait: oldest; or never, and then the gateway reads more slowly."""
