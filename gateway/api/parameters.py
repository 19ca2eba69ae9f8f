"""What `POST /predict` can be asked."""

from functools import lru_cache
from typing import Annotated
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, Field

from gateway.api.shapes import Shape
from gateway.inference.parameters import ModelName, ModelVersion, TimeoutSeconds, TopK
from gateway.ingest.frames import PATTERN

_REMEMBERED, _REMEMBERED_BYTES = 1_024, 512
"""Most clients ask the same each time."""


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


def predict_parameters(query_string: bytes) -> PredictParameters:
    """The parameters of a URL, as FastAPI reads them; raises pydantic's ValidationError."""
    return (_recalled if len(query_string) <= _REMEMBERED_BYTES else _read)(query_string)


def _read(query_string: bytes) -> PredictParameters:
    labels: list[str] = []
    others: dict[str, str] = {}
    for name, value in parse_qsl(query_string.decode("latin-1"), keep_blank_values=True):
        if name == "labels":
            labels.append(value)
        else:
            others[name] = value  # of one that comes twice the last one counts
    return PredictParameters.model_validate({**others, "labels": labels} if labels else others)


_recalled = lru_cache(_REMEMBERED)(_read)
