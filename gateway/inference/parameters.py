"""Parameters that all routes for images share, as types with bounds for pydantic models."""

from typing import Annotated

from pydantic import Field, WithJsonSchema

from gateway.inference.request_spec import MIN_TIMEOUT_SECONDS
from gateway.values.validation import VERSION_PATTERN

TopK = Annotated[int | None, Field(ge=1)]
ModelName = Annotated[str | None, Field(min_length=1, max_length=256)]
ModelVersion = Annotated[str | None, Field(pattern=VERSION_PATTERN)]
TimeoutSeconds = (
    Annotated[float, Field(allow_inf_nan=False), WithJsonSchema({"type": "number", "minimum": MIN_TIMEOUT_SECONDS})]
    | None
)
"""Its limits are those of gateway.inference.request_spec.timeout_within."""
