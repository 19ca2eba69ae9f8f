"""What `POST /predict` can be asked."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from gateway.api.shapes import Shape
from gateway.inference.asked import ModelName, ModelVersion, TimeoutSeconds, TopK
from gateway.ingest.frames import PATTERN


class PredictParameters(BaseModel):
    """What `POST /predict` can be asked; multipart fields of the same names, before the first file, say the same."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    top_k: TopK = None
    """Predictions for each file, best first; the default and the largest value are settings."""
    threshold: Annotated[float | None, Field(ge=0, le=1, allow_inf_nan=False)] = None
    """Only classes with at least this score; 0.5 for a multi-label model, where `top_k` does not say otherwise."""
    labels: Annotated[list[str], Field(max_length=1_000)] = []
    """Only classes with these labels, with commas or repeated."""
    model: ModelName = None
    """A model of `GET /models`; the default is a setting."""
    version: ModelVersion = None
    """A version of the model; without it the one in use answers."""
    timeout: TimeoutSeconds = None
    """Seconds that any one file may wait for its answer, from its last byte on."""
    frames: Annotated[str | None, Field(max_length=32, json_schema_extra={"pattern": PATTERN})] = None
    """Frames of animated files and videos that get an answer each: a number, evenly spread; all; one in every:0.5s."""
    format: Shape = Shape.NATIVE
    """The shape of the answer: this service's own, or one that clients of another know already."""
