"""The Open Inference Protocol's terms: tensors, errors, and the description of a model."""

from typing import Any

from pydantic import BaseModel
from pydantic_core import to_json

from gateway.hooks import ErrorFormat
from gateway.inference.backend import ModelInfo

HEADER_LENGTH = "Inference-Header-Content-Length"
"""The header with the bytes of JSON at the start of a binary body."""
IMAGE = "IMAGE"
PREDICTION, STATUS, FEATURES = "PREDICTION", "STATUS", "FEATURES"
SEQUENCE_PREDICTION, SEQUENCE_FRAMES = "SEQUENCE_PREDICTION", "SEQUENCE_FRAMES"
OUTPUTS = (PREDICTION, STATUS, FEATURES, SEQUENCE_PREDICTION, SEQUENCE_FRAMES)
"""Only models with embeddings have FEATURES, and only requests of a sequence the last two."""
PLATFORM = "ensemble"


class V2Error(BaseModel):
    """Any error of a path under /v2."""

    error: str


V2_ERRORS = ErrorFormat("/v2", V2Error, lambda error: to_json({"error": error.message}))


def metadata_of(info: ModelInfo) -> dict[str, Any]:
    """A model with its inputs and outputs; -1 in a shape is any number, and the first dimension counts images."""
    outputs = [
        {"name": PREDICTION, "datatype": "FP32", "shape": [-1, info.classes]},
        {"name": STATUS, "datatype": "BYTES", "shape": [-1]},
    ]
    if info.embedding_size:
        outputs.append({"name": FEATURES, "datatype": "FP32", "shape": [-1, info.embedding_size]})
    return {
        "name": info.name,
        "versions": list(info.versions),
        "platform": PLATFORM,
        "inputs": [{"name": IMAGE, "datatype": "BYTES", "shape": [-1]}],
        "outputs": outputs,
    }
