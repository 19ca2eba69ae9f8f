"""What FastAPI cannot see of an inference request, as its body is read as a stream."""

from typing import Any

from gateway.api.routes.v2.schemas import V2Error
from gateway.oip.request import IMAGE, OUTPUTS

_REQUEST_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string", "description": "Returned with the response."},
        "parameters": {
            "type": "object",
            "properties": {
                "timeout": {
                    "type": "integer",
                    "minimum": 0,
                    "description": "Microseconds that any one image may wait for its answer, from its last byte on; "
                    "0 for the default. Place it before `inputs`: after the images it comes too late for them.",
                },
                "binary_data_output": {
                    "type": "boolean",
                    "description": "Whether outputs are returned as binary data unless they specify it themselves.",
                },
            },
        },
        "inputs": {
            "type": "array",
            "minItems": 1,
            "maxItems": 1,
            "items": {
                "type": "object",
                "required": ["name", "datatype", "shape", "data"],
                "properties": {
                    "name": {"type": "string", "enum": [IMAGE]},
                    "datatype": {"type": "string", "enum": ["BYTES"]},
                    "shape": {
                        "type": "array",
                        "items": {"type": "integer", "minimum": 1},
                        "minItems": 1,
                        "maxItems": 2,
                        "description": "[N] or [N, 1] for N images.",
                    },
                    "data": {
                        "type": "array",
                        "minItems": 1,
                        "items": {"type": "string", "format": "byte", "description": "An image in base64."},
                    },
                },
            },
        },
        "outputs": {
            "type": "array",
            "description": "The outputs to return; by default all that the model has.",
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": {"type": "string", "enum": list(OUTPUTS)},
                    "parameters": {
                        "type": "object",
                        "properties": {
                            "classification": {
                                "type": "integer",
                                "minimum": 0,
                                "description": 'The best classes of each image as "score:class id:label", in place of '
                                "every class's score; for PREDICTION.",
                            },
                            "binary_data": {"type": "boolean"},
                        },
                    },
                },
            },
        },
    },
}

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
            "description": "Bytes of the JSON at the start of a binary body.",
        }
    ],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": _REQUEST_SCHEMA},
            "application/octet-stream": {"schema": _BINARY},
        },
    },
}
"""The body is read as a stream, and the header of the binary form with it."""

RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "At least one image was classified; STATUS shows which.",
        "content": {"application/octet-stream": {"schema": _BINARY}},
    },
    **{
        status: {"model": V2Error, "description": description}
        for status, description in {
            400: "The body is malformed.",
            404: "There is no such model.",
            408: "The upload took too long.",
            413: "The request, or its only image, is too large.",
            415: "The only image has an unsupported format, or the body is compressed.",
            422: "The request asks for something that does not exist, or no image could be classified.",
            431: "The JSON is too large beside its images.",
            502: "The inference server failed.",
            503: "Overloaded, or the model is not available; see Retry-After.",
            504: "The deadline passed.",
        }.items()
    },
}
