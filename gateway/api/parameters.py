"""The parameters of `POST /predict`."""

from functools import lru_cache
from typing import Annotated
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, Field

from gateway.api.shapes import Shape
from gateway.inference.parameters import ModelName, ModelVersion, TimeoutSeconds, TopK
from gateway.ingest.frames import PATTERN

_CACHE_SIZE, _CACHED_BYTES = 1_024, 512
"""Size of the cache of parsed query strings, and longest cached one: most clients always send the same."""


class PredictParameters(BaseModel):
    """Parameters of `POST /predict`: in the query, or as multipart fields of the same names before the first file."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    top_k: TopK = None
    """Predictions for each file, best first; the default and the largest value are settings."""
    threshold: Annotated[float | None, Field(ge=0, le=1, allow_inf_nan=False)] = None
    """Only classes with at least this score; default 0.5 for a multi-label model unless `top_k` is set."""
    labels: Annotated[list[str], Field(max_length=1_000)] = []
    """Only classes with these labels, separated by commas or repeated."""
    model: ModelName = None
    """A model of `GET /models`; the default is a setting."""
    version: ModelVersion = None
    """A version of the model; default: the version in use."""
    timeout: TimeoutSeconds = None
    """Deadline for each file in seconds, from its last byte on."""
    frames: Annotated[str | None, Field(max_length=32, json_schema_extra={"pattern": PATTERN})] = None
    """Frames of animations and videos that get a result each: a number, evenly spread; all; one in every:0.5s."""
    format: Shape = Shape.NATIVE
    """The format of the response: this service's own, or that of another service."""


def predict_parameters(query_string: bytes) -> PredictParameters:
    """Parse a query string like FastAPI; raises pydantic's ValidationError."""
    return (_cached_parse if len(query_string) <= _CACHED_BYTES else _parse)(query_string)


def _parse(query_string: bytes) -> PredictParameters:
    labels: list[str] = []
    others: dict[str, str] = {}
    for name, value in parse_qsl(query_string.decode("latin-1"), keep_blank_values=True):
        if name == "labels":
            labels.append(value)
        else:
            others[name] = value  # the last value of a repeated parameter counts
    return PredictParameters.model_validate({**others, "labels": labels} if labels else others)


_cached_parse = lru_cache(_CACHE_SIZE)(_parse)
