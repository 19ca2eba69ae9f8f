"""Stream parameters."""

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gateway.inference.backend import Parameters
from gateway.inference.request_spec import ModelName, ModelVersion, TimeoutSeconds, TopK


class Smoothing(StrEnum):
    """How the scores of a sequence are computed from those of its frames."""

    HOLD = "hold"
    """As exponential; the first class stays until another one leads by a margin."""
    EXPONENTIAL = "exponential"
    MAJORITY = "majority"
    HYSTERESIS = "hysteresis"
    NONE = "none"


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
    smoothing: Smoothing = Smoothing.HOLD
    """How the sequence's scores are computed: hold, exponential, majority, hysteresis, or none for no sequence."""
    alpha: Annotated[float, Field(gt=0, le=1)] = 0.3
    """Hold and exponential: the weight of the newest frame."""
    margin: Annotated[float, Field(ge=0, le=1)] = 0.15
    """Hold: how far another class must lead before it replaces the first one."""
    window: Annotated[int, Field(ge=1, le=10_000)] = 15
    """Majority: the number of latest frames that vote, each for its best class."""
    enter: Annotated[float, Field(ge=0, le=1)] = 0.6
    """Hysteresis: a class is returned from this score on."""
    leave: Annotated[float, Field(ge=0, le=1)] = 0.4
    """Hysteresis: a returned class stays until its score falls below this."""
    drop: Drop = Drop.OLDEST
    """Which frames are dropped if too many wait: oldest; or never, and then the gateway reads more slowly."""

    @model_validator(mode="after")
    def _leave_is_not_above_enter(self) -> "StreamParameters":
        if self.leave > self.enter:
            msg = "'leave' must not be above 'enter'"
            raise ValueError(msg)
        return self

    @property
    def for_the_model(self) -> Parameters:
        """The parameters of the stateful model."""
        return {
            "smoothing": Smoothing.EXPONENTIAL.value if self.smoothing is Smoothing.HOLD else self.smoothing.value,
            "alpha": self.alpha,
            "window": self.window,
            "enter": self.enter,
            "leave": self.leave,
        }
