"""What a stream can be asked, at its opening and in its midst."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gateway.errors import InvalidParameter
from gateway.inference.parameters import ModelName, ModelVersion, TimeoutSeconds, TopK, selection_from_parameters
from gateway.inference.request_spec import timeout_within
from gateway.inference.selection import Selection
from gateway.inference.sequence import Parameters
from gateway.settings import Settings
from gateway.validation import fault

FIXED = ("model", "version")
"""What cannot change while a stream is open."""
_MAX_TOLD = 10


class Smoothing(StrEnum):
    """How the scores of a sequence come from those of its frames."""

    EXPONENTIAL = "exponential"
    MAJORITY = "majority"
    HYSTERESIS = "hysteresis"
    NONE = "none"


class Drop(StrEnum):
    """What happens to frames that come faster than they are answered."""

    OLDEST = "oldest"
    NEVER = "never"


class StreamParameters(BaseModel):
    """The parameters of `WS /stream`: in the query, and all but model and version also in a text message, as JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    model: ModelName = None
    """A model of `GET /models`; the default is a setting."""
    version: ModelVersion = None
    """A version of the model; without it the one in use answers."""
    top_k: TopK = None
    """Predictions for each frame and for the sequence, best first."""
    threshold: Annotated[float | None, Field(ge=0, le=1, allow_inf_nan=False)] = None
    """Only classes with at least this score."""
    labels: Annotated[list[str], Field(max_length=1_000)] = []
    """Only classes with these labels."""
    timeout: TimeoutSeconds = None
    """Seconds that a frame may wait for its answer, from the moment at which its turn comes."""
    smoothing: Smoothing = Smoothing.EXPONENTIAL
    """How the sequence's scores come about: exponential, majority, hysteresis, or none for no sequence at all."""
    alpha: Annotated[float, Field(gt=0, le=1)] = 0.3
    """Exponential: the weight of the newest frame."""
    window: Annotated[int, Field(ge=1, le=10_000)] = 15
    """Majority: how many frames have a vote, each for its best class."""
    enter: Annotated[float, Field(ge=0, le=1)] = 0.6
    """Hysteresis: a class is told from this score on."""
    leave: Annotated[float, Field(ge=0, le=1)] = 0.4
    """Hysteresis: a class that is told stays until its score falls below this."""
    drop: Drop = Drop.OLDEST
    """Which frames go when too many wait: the oldest, or none, and then the gateway reads more slowly."""

    @model_validator(mode="after")
    def _leaves_below_where_it_enters(self) -> "StreamParameters":
        if self.leave > self.enter:
            msg = "'leave' must not be above 'enter'"
            raise ValueError(msg)
        return self

    @property
    def for_the_model(self) -> Parameters:
        """What the stateful model is asked for."""
        return {
            "smoothing": self.smoothing.value,
            "alpha": self.alpha,
            "window": self.window,
            "enter": self.enter,
            "leave": self.leave,
        }

    def timeout_seconds(self, settings: Settings) -> float:
        """How long a frame may wait for its answer; raises InvalidParameter."""
        return timeout_within(self.timeout, default=settings.default_timeout_seconds, most=settings.max_timeout_seconds)

    def selection(self, settings: Settings) -> Selection:
        """Which classes are returned; raises InvalidParameter."""
        return selection_from_parameters(self, settings)


def read_parameters(
    given: dict[str, Any], settings: Settings, before: StreamParameters | None = None
) -> StreamParameters:
    """What is asked, over what was asked `before`; raises InvalidParameter with what is not allowed."""
    if before is not None and (fixed := [name for name in FIXED if name in given]):
        raise InvalidParameter(f"{fixed[0]!r} cannot change while a stream is open: open another one.")
    try:
        asked = StreamParameters.model_validate({**(before.model_dump(exclude_unset=True) if before else {}), **given})
    except ValidationError as exc:
        raise InvalidParameter(" ".join(map(_sentence, exc.errors()[:_MAX_TOLD]))) from None
    asked.selection(settings)
    asked.timeout_seconds(settings)
    return asked


def _sentence(error: Any) -> str:  # noqa: ANN401  # pydantic's
    name = str(error["loc"][-1])[:80] if error["loc"] else ""
    if error["type"] == "extra_forbidden":
        return (
            f"{name!r} is not a parameter of a stream; the parameters are {', '.join(StreamParameters.model_fields)}."
        )
    if not name:
        return f"{fault(error)}."
    return f"{name!r}: {fault(error)}."
