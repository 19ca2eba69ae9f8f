"""POST /explain: which parts of an image carry the score of a class."""

from base64 import b64encode
from collections import deque
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json
from starlette.responses import Response

from gateway.api.answers import Collected, PiecedAnswer
from gateway.api.parameters import (
    ModelName,
    ModelVersion,
    TimeoutSeconds,
    image_route,
    named_class,
    open_uploads,
    request_spec,
)
from gateway.api.request_context import RequestContext, request_context
from gateway.api.schemas import ModelOut, Schema
from gateway.errors import InternalError, InvalidParameter, TooManyFiles
from gateway.inference.request_spec import RequestSpec
from gateway.inference.result import Result
from gateway.ingest.upload import Uploads
from gateway.plugins.media.explaining import ExplainedResult, MaskedCopies
from gateway.plugins.media.settings import MAX_MASKED_BYTES, MAX_MASKS

router = APIRouter(tags=["classify"])

DEFAULT_MASKS = 500
"""Masks, if the request does not set their number."""


class ExplainParameters(BaseModel):
    """Parameters of `POST /explain`: in the query, or as multipart fields of the same names before the file."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    label: Annotated[str | None, Field(min_length=1, max_length=1_000)] = None
    """The class to explain, by its label; default: the top-1 class."""
    class_id: Annotated[int | None, Field(ge=0, le=2**31 - 1)] = None
    """The class to explain, instead of its label."""
    masks: Annotated[int, Field(ge=1)] = DEFAULT_MASKS
    """Masked copies to classify; more give a smoother map."""
    model: ModelName = None
    """A model of `GET /models`; the default is a setting."""
    version: ModelVersion = None
    """A version of the model; default: the version in use."""
    timeout: TimeoutSeconds = None
    """Deadline for the whole explanation in seconds, from the last byte of the image on; default: the largest one."""
    strict: bool = False
    """Whether a damaged JPEG is refused; by default its result has `warning`."""


class ExplanationOut(Schema):
    """The heat map of one class."""

    filename: str
    width: int | None
    """Pixels across, upright."""
    height: int | None
    """Pixels down, upright."""
    label: str
    class_id: int
    score: float
    """The score of the class for the image itself."""
    masks: int
    """Masked copies that were classified."""
    values: list[list[float]]
    """The map by rows, from the top: the mean score of the class with a cell visible, less that with it hidden."""
    overlay: str
    """The map as a PNG in base64, with transparency and in the image's proportions, to lay over the image."""
    warning: Literal["damaged"] | None = None
    """Present only if the file is a damaged JPEG: some of the pixels that the model saw are wrong."""


class ExplainResponse(Schema):
    """Which parts of an image carry the score of a class."""

    model: ModelOut
    explanation: ExplanationOut


@image_route(
    router,
    "/explain",
    ExplainParameters,
    {"description": "The heat map of one class."},
    summary="Explain the score of a class by a heat map",
    response_model=ExplainResponse,
)
async def explain(request: Request) -> Response:
    """Classify masked copies of one image, and compute from their scores which parts of it carry a class.

    It works for every model. Each masked copy counts as an image for the quota of the API key, and waits for the
    images of all other requests.
    """
    context = request_context(request)
    settings = context.settings
    parameters, body, uploads = await open_uploads(request, context, ExplainParameters)
    spec = request_spec(
        request,
        context,
        model_name=parameters.model or settings.model,
        version=parameters.version,
        timeout_seconds=settings.max_timeout_seconds if parameters.timeout is None else parameters.timeout,
        selection=None,
        strict=parameters.strict,
    )
    spec = replace(spec, expansion=await _masked_copies(context, spec, parameters), lowest_priority=True)
    collected = Collected(context)
    results = await collected.classify(spec, body, _only_one(uploads))
    document = to_json(await _document(context, spec, results[0]), exclude_none=True)
    return PiecedAnswer(deque((document,)), collected.lease)


async def _masked_copies(context: RequestContext, spec: RequestSpec, parameters: ExplainParameters) -> MaskedCopies:
    """How the image is masked, and the class to explain; raises InvalidParameter."""
    if parameters.label is not None and parameters.class_id is not None:
        raise InvalidParameter("'class_id': send it or 'label', not both.")
    if parameters.masks > MAX_MASKS:
        sentence = f"'masks': an explanation has at most {MAX_MASKS:,} masks."
        raise InvalidParameter(sentence, limit="max_masks", value=MAX_MASKS)
    label, class_id = await named_class(
        context.service.backend, spec.model_name, spec.model_version, parameters.label, parameters.class_id
    )
    if label is not None and class_id is None:
        raise InvalidParameter(f"'label': several classes of {spec.model_name!r} have it: send 'class_id' instead.")
    return MaskedCopies(parameters.masks, MAX_MASKED_BYTES, class_id)


async def _only_one(uploads: Uploads) -> Uploads:
    """The upload of a request that must have no other; raises TooManyFiles before anything is done with the first."""
    async with aclosing(uploads):
        first = await anext(uploads)
        if await anext(uploads, None) is not None:
            raise TooManyFiles(
                "An explanation is of one image: send one in each request.", limit="max_explained", value=1
            )
        yield first


async def _document(context: RequestContext, spec: RequestSpec, result: Result) -> ExplainResponse:
    """The response for a result; raises its error."""
    if result.error is not None:
        raise result.error
    if not isinstance(result, ExplainedResult):
        raise InternalError
    labels = await context.service.backend.labels(spec.model_name, spec.model_version)
    return ExplainResponse(
        model=ModelOut(name=spec.model_name, version=result.row.model_version or None),
        explanation=ExplanationOut(
            filename=result.filename,
            width=result.width,
            height=result.height,
            label=labels[result.class_id] if result.class_id < len(labels) else "",
            class_id=result.class_id,
            score=result.score,
            masks=result.masks,
            values=[[round(value, 6) for value in row] for row in result.heat.values.tolist()],
            overlay=b64encode(result.heat.overlay).decode(),
            warning="damaged" if result.row.damaged else None,
        ),
    )
