"""What clients may ask of every route that takes images, as types with their bounds for pydantic's models."""

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
    """Which classes of a model are asked for."""

    @property
    def top_k(self) -> int | None:
        """How many."""

    @property
    def threshold(self) -> float | None:
        """From which score on."""

    @property
    def labels(self) -> Sequence[str]:
        """Of which labels alone; of all, where there are none."""


def selection_from_parameters(asked: Classes, settings: Settings) -> Selection:
    """The classes that are asked for, within the limits of the settings; raises InvalidParameter."""
    return Selection(
        top_k=asked.top_k,
        threshold=asked.threshold,
        labels=tuple(asked.labels),
        default_top_k=settings.default_top_k,
        max_top_k=settings.max_top_k,
    )
