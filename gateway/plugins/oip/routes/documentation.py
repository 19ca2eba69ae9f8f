"""OpenAPI schemas of an inference request, which FastAPI does not know because its body is read as a stream."""

from typing import Any

from gateway.api.openapi import reference
from gateway.plugins.oip.documents import InferenceBody, V2Error

_BINARY = {
    "type": "string",
    "format": "binary",
    "description": "The JSON, whose length is the header Inference-Header-Content-Length, then tensors as binary data.",
}

REQUEST: dict[str, Any] = {
    "parameters": [
        {
            "name": "Inference-Header-Content-Length",
            "in": "header",
            "required": False,
            "schema": {"type": "integer", "minimum": 0},
            "description": "Bytes of the JSON at the start of a binary body; 0 if the body is one image.",
        }
    ],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": reference(InferenceBody)},
            "application/octet-stream": {"schema": _BINARY},
        },
    },
}
"""The request body and the header for binary bodies."""

RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "At least one image was classified; STATUS shows which.",
        "content": {"application/octet-stream": {"schema": _BINARY}},
    },
    **{
        status: {"model": V2Error, "description": description}
        for status, description in {
            400: "The body is malformed.",
            403: "The API key may not use this model or path.",
            404: "There is no such model.",
            408: "The upload took too long.",
            409: "The sequence has no state: start it again.",
            413: "The request, or its only image, is too large.",
            415: "The only image has an unsupported format, or the body is compressed.",
            422: "The request asks for something that does not exist, or no image could be classified.",
            429: "The rate of the API key is exceeded; see Retry-After.",
            431: "The JSON is too large beside its images.",
            502: "The inference server failed.",
            503: "Overloaded, or the model is not available; see Retry-After.",
            504: "The deadline passed.",
        }.items()
    },
}
