"""POST /predict: images in, labels and scores out."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi import Query as QueryParameter
from starlette.responses import Response

from gateway.api.answers import respond
from gateway.api.body import open_body
from gateway.api.parameters import PredictParameters, query_parameters, request_spec, with_form
from gateway.api.request_context import request_context
from gateway.api.route_table import traits
from gateway.api.schemas import Problem
from gateway.api.shapes import SHAPES, PredictDocuments, Shape
from gateway.errors import InvalidParameter
from gateway.inference.backend import Backend
from gateway.inference.selection import Selection
from gateway.ingest.frames import read_frames

router = APIRouter(tags=["classify"])

RAW_IMAGE = {"type": "string", "format": "binary", "description": "One raw image."}
IMAGE_IN_BASE64: dict[str, Any] = {
    "type": "object",
    "required": ["b64"],
    "additionalProperties": False,
    "properties": {
        "b64": {"type": "string", "format": "byte", "description": "The image in base64."},
        "filename": {"type": "string"},
    },
}
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
        "application/json": {
            "schema": {
                "type": "object",
                "description": "Images in base64. Hugging Face's `inputs` and `parameters` are accepted, too.",
                "required": ["images"],
                "additionalProperties": False,
                "properties": {"images": {"type": "array", "minItems": 1, "items": IMAGE_IN_BASE64}},
            }
        },
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


def _documented(parameters: Annotated[PredictParameters, QueryParameter()]) -> None:
    """Declares the parameters in the OpenAPI document; the endpoint parses them itself."""


@router.post(
    "/predict",
    summary="Classify images",
    response_model=PredictDocuments,
    responses={200: {"description": "At least one file was classified; each file has its own result."}, **FAULTS},
    openapi_extra={"requestBody": REQUEST_BODY},
    dependencies=[Depends(_documented)],
)
@traits(takes_images=True, direct=True)
async def predict(request: Request) -> Response:
    """Classify one or more images. Each file gets its own result, in order: a bad file does not affect the others.

    Files are classified as they arrive, while the rest of a large upload is still being received.
    """
    context = request_context(request)
    service, settings = context.service, context.settings
    parameters = query_parameters(PredictParameters, request.scope["query_string"])
    with context.stats.stages["read"]:
        body = open_body(request, context)
        form, uploads = await body.open_uploads(service.policy.limits, tuple(PredictParameters.model_fields))
    function = form.pop("function_to_apply", [])
    if form.get("format", [])[-1:] == [Shape.HUGGINGFACE] and "format" in parameters.model_fields_set:
        del form["format"]  # the format that the body implies is only a default
    parameters = with_form(parameters, form)
    spec = request_spec(
        request,
        context,
        model_name=parameters.model or settings.model,
        version=parameters.version,
        timeout_seconds=parameters.timeout,
        selection=Selection.of(parameters, settings),
        frames=None if parameters.frames is None else read_frames(parameters.frames, settings.max_frames),
        strict=parameters.strict,
    )
    if function:
        await _check_function(function[-1], service.backend, spec.model_name)
    return await respond(request, context, spec, body, uploads, SHAPES[parameters.format])


async def _check_function(function: str, backend: Backend, model_name: str) -> None:
    """Check Hugging Face's `function_to_apply`; raises InvalidParameter if it is not the model's last layer."""
    ends_in = "sigmoid" if (await backend.model(model_name)).multi_label else "softmax"
    if function != ends_in:
        raise InvalidParameter(
            f"'function_to_apply': {model_name!r} ends in {ends_in}, and its scores are returned unchanged; "
            f"leave it out, or send {ends_in!r}."
        )
