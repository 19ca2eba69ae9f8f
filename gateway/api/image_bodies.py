"""What the OpenAPI document says of routes that take images: their bodies, and their errors."""

from typing import Any

from gateway.api.schemas import Problem

RAW_IMAGE = {"type": "string", "format": "binary", "description": "One raw image."}
REQUEST_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "description": "Files; parameters of the query may precede them as form fields.",
                "required": ["files"],
                "properties": {
                    "files": {
                        "type": "array",
                        "minItems": 1,
                        "items": {"type": "string", "format": "binary"},
                        "description": "The images; any field name is accepted if its part has a file name.",
                    }
                },
            }
        },
        "image/*": {"schema": RAW_IMAGE},
        "application/octet-stream": {"schema": RAW_IMAGE},
    },
}
"""The body is read as a stream, so FastAPI does not know its schema, which is declared here."""
FAULTS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": description}
    for status, description in {
        400: "The body is malformed.",
        403: "The API key may not use this model or path.",
        404: "There is no such model.",
        408: "The upload took too long.",
        413: "The request, or its only file, is too large.",
        415: "The body, or its only file, has an unsupported type.",
        422: "A parameter is invalid, or no file could be classified.",
        429: "The rate of the API key is exceeded; see Retry-After.",
        431: "Headers are too large.",
        502: "The inference server failed.",
        503: "Overloaded, or the model is not available; see Retry-After.",
        504: "The deadline passed.",
    }.items()
}
