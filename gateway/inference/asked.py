"""What clients may ask of every route that takes images, as types with their bounds for pydantic's models."""

from typing import Annotated

from pydantic import Field

TopK = Annotated[int | None, Field(ge=1)]
ModelName = Annotated[str | None, Field(min_length=1, max_length=256)]
ModelVersion = Annotated[str | None, Field(pattern=r"^[0-9]{1,18}$")]
TimeoutSeconds = Annotated[float | None, Field(gt=0, allow_inf_nan=False)]
