"""Parameters that all routes for images share, as types with bounds for pydantic models."""

from collections.abc import Sequence
from typing import Annotated, Protocol

from pydantic import Field, WithJsonSchema

from gateway.inference.request_spec import MIN_TIMEOUT_SECONDS
from gateway.inference.selection import Selection
from gateway.settings import Settings
from gateway.validation import VERSION_PATTERN

TopK = Annotated[int | None, Field(ge=1)]
ModelName = Annotated[str | None, Field(min_length=1, max_length=256)]
ModelVersion = Annotated[str | None, Field(pattern=VERSION_PATTERN)]
TimeoutSeconds = (
    Annotated[float, Field(allow_inf_nan=False), WithJsonSchema({"type": "number", "minimum": MIN_TIMEOUT_SECONDS})]
    | None
)
"""Its limits are those of gateway.inference.request_spec.timeout_within."""


class Classes(Protocol):
    """The parameters that select classes."""

    @property
    def top_k(self) -> int | None:
        """The number of best classes."""

    @property
    def threshold(self) -> float | None:
        """The lowest score."""

    @property
    def labels(self) -> Sequence[str]:
        """The labels to return; all if empty."""


def selection_from_parameters(parameters: Classes, settings: Settings) -> Selection:
    """The requested selection, within the limits of the settings; raises InvalidParameter."""
    return Selection(
        top_k=parameters.top_k,
        threshold=parameters.threshold,
        labels=tuple(parameters.labels),
        default_top_k=settings.default_top_k,
        max_top_k=settings.max_top_k,
    )
