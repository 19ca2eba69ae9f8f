"""The shapes of the Open Inference Protocol's answers, as the OpenAPI page shows them."""

from typing import Literal

from pydantic import JsonValue

from gateway.api.schemas import Schema
from gateway.inference.backend import ModelInfo
from gateway.oip.request import FEATURES, IMAGE, PREDICTION, STATUS

PLATFORM = "ensemble"


class V2Error(Schema):
    """Any error of a path under /v2."""

    error: str


class ServerMetadata(Schema):
    """The gateway, as the protocol has a server introduce itself."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(Schema):
    """An input or output; -1 in a shape is any number, the first one of images."""

    name: str
    datatype: Literal["BYTES", "FP32"]
    shape: list[int]


class ModelMetadata(Schema):
    """A model, and what it takes and gives."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class OutputTensor(Schema):
    """An output: `data` row by row, or the bytes that it has behind the JSON as `binary_data_size`."""

    name: str
    datatype: Literal["BYTES", "FP32"]
    shape: list[int]
    parameters: dict[str, JsonValue] | None = None
    data: list[float | str | None] | None = None
    """Null for each score of an image that has none."""


class InferenceResponse(Schema):
    """The answer for the images of a request, in their order."""

    model_name: str
    model_version: str
    id: str | None = None
    """That of the request."""
    outputs: list[OutputTensor]


def model_metadata(info: ModelInfo) -> ModelMetadata:
    """One model in the protocol's shape."""
    return ModelMetadata(
        name=info.name,
        versions=list(info.versions),
        platform=PLATFORM,
        inputs=[TensorMetadata(name=IMAGE, datatype="BYTES", shape=[-1])],
        outputs=[
            TensorMetadata(name=PREDICTION, datatype="FP32", shape=[-1, info.classes]),
            TensorMetadata(name=STATUS, datatype="BYTES", shape=[-1]),
            *(
                [TensorMetadata(name=FEATURES, datatype="FP32", shape=[-1, info.vector_size])]
                if info.vector_size
                else []
            ),
        ],
    )
