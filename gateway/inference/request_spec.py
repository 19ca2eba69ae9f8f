"""The parameters of a request."""

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field, WithJsonSchema

from gateway.errors import InvalidParameter
from gateway.inference.backend import Embeddings
from gateway.inference.expansion import Expansion
from gateway.inference.request_stats import RequestStats
from gateway.inference.selection import Selection
from gateway.limits.caller import ANYONE, Caller
from gateway.values.validation import VERSION_PATTERN

MIN_TIMEOUT_SECONDS = 0.001
"""Shortest timeout that a client may request; any network takes longer."""


def timeout_within(seconds: float | None, *, default: float, most: float) -> float:
    """The timeout that a client requests, or the default; raises InvalidParameter outside of the limits."""
    if seconds is None:
        return default
    if not seconds >= MIN_TIMEOUT_SECONDS:
        raise InvalidParameter(
            f"'timeout': must be at least {MIN_TIMEOUT_SECONDS:g} s.",
            limit="min_timeout_seconds",
            value=MIN_TIMEOUT_SECONDS,
        )
    if seconds > most:
        raise InvalidParameter(f"'timeout': must be at most {most:g} s.", limit="max_timeout_seconds", value=most)
    return seconds


@dataclass(slots=True)
class RequestSpec:
    """The parameters of a request, and its statistics (`stats`). `model_version` "" is the version in use."""

    model_name: str
    model_version: str
    selection: Selection | None
    """What each image's result contains; None for the scores of every class, without labels."""
    timeout_seconds: float
    request_id: str
    embeddings: Embeddings = Embeddings.NONE
    """Whether each image's result includes its embedding."""
    split: bool = False
    """Whether the model's rollout has chosen the version, and not the client."""
    expansion: Expansion | None = None
    """What makes several images of each file; None: a file is one image."""
    route: str = ""
    """The path of the route, such as /predict; "" if it is not known."""
    key: str = ""
    """The name of the client's API key; "" without one."""
    address: str = ""
    """The address from which the request came; "" if it is not known."""
    strict: bool = False
    """Whether a damaged image is an error, even if it can be decoded."""
    stats: RequestStats = field(default_factory=RequestStats)
    caller: Caller = ANYONE
    """Whom the images are charged to."""
    paid: bool = False
    """Whether the next image is charged already."""


TopK = Annotated[int | None, Field(ge=1)]
ModelName = Annotated[str | None, Field(min_length=1, max_length=256)]
ModelVersion = Annotated[str | None, Field(pattern=VERSION_PATTERN)]
TimeoutSeconds = (
    Annotated[float, Field(allow_inf_nan=False), WithJsonSchema({"type": "number", "minimum": MIN_TIMEOUT_SECONDS})]
    | None
)
"""Its limits are those of gateway.inference.request_spec.timeout_within."""
