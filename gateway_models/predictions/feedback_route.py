"""POST /feedback: the true label of an image of an earlier request, for the prediction log."""

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from gateway.api.body import Body
from gateway.api.parameters import ModelName, named_class, reading
from gateway.api.request_context import RequestContext, request_context
from gateway.api.route_table import traits
from gateway.api.schemas import Problem, Schema
from gateway.errors import InvalidBody, InvalidParameter, NotFound, Overloaded, RateLimited
from gateway.ingest import json_text
from gateway.limits.caller import REFUSAL_SECONDS
from gateway.settings import variable

if TYPE_CHECKING:
    from gateway_models.predictions.service_log import ServiceLog

MAX_FEEDBACK_BYTES = 4_096
"""Upper bound of the body."""
NO_LABEL = (
    "Send exactly one of 'label' (the true label), 'class_id' (its class), 'wrong' (true) and 'withdrawn' (true)."
)


class FeedbackResponse(Schema):
    """The feedback as it is logged."""

    request_id: str
    index: int
    model: str
    label: str | None
    """Null if the answer is only known to be wrong."""
    class_id: int | None
    """Null also if several classes share the label."""


class FeedbackBody(BaseModel):
    """What a client knows of one image: its true label or class, or only that the answer is wrong."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, strict=True)

    request_id: Annotated[str, Field(min_length=1, max_length=128)]
    """The id of the request with the image, from its response's header X-Request-ID."""
    index: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Position of the file in that request, from 0."""
    model: ModelName = None
    """The model that answered; the default is a setting."""
    label: Annotated[str | None, Field(min_length=1, max_length=1_000)] = None
    """The true label, one of the model's."""
    class_id: Annotated[int | None, Field(ge=0, le=2**31 - 1)] = None
    """The true class, instead of its label."""
    wrong: bool = False
    """Whether the best prediction is wrong, if the true label is not known."""
    withdrawn: bool = False
    """Whether the last feedback for the image was a mistake, and does not count."""
    drawn: bool = False
    """Whether the image was chosen at random to be labelled, whatever its answer: such labels give the accuracy."""


_BODY: dict[str, Any] = {
    "required": True,
    "content": {"application/json": {"schema": FeedbackBody.model_json_schema()}},
}


def router(log: "ServiceLog | None") -> APIRouter:
    """The route, which logs feedback in `log`; None refuses it."""
    api = APIRouter(tags=["classify"])

    @api.post(
        "/feedback",
        summary="Report the true label of an image",
        status_code=HTTPStatus.ACCEPTED,
        responses={status: {"model": Problem} for status in (400, 404, 413, 422, 429, 503)},
        openapi_extra={"requestBody": _BODY},
    )
    @traits()
    async def give_feedback(request: Request) -> FeedbackResponse:
        """Log the true label of an image of an earlier request, or that its answer was wrong.

        The last feedback for an image counts, unless it is withdrawn. It is joined with the logged results by the
        request's id when the log is read, and counts as an image for the rate of the API key; feedback for results that
        were not logged has no effect.
        """
        context = request_context(request)
        if log is None:
            raise NotFound(f"This service takes no feedback: its operator has to set {variable('log_predictions')}.")
        given = await _read(request, context)
        context.log_fields["model"] = model_name = given.model or context.settings.model
        context.check_model(model_name)
        try:  # a row of the log, as an image makes one
            await context.caller.charge(context.settings.max_wait_seconds, context.stats.stages)
        except RateLimited:
            await asyncio.sleep(REFUSAL_SECONDS)
            raise
        if sum((given.label is not None, given.class_id is not None, given.wrong, given.withdrawn)) != 1:
            raise InvalidParameter(NO_LABEL)
        backend = context.service.backend
        label, class_id = await named_class(backend, model_name, "", given.label, given.class_id)
        found = FeedbackResponse(
            request_id=given.request_id, index=given.index, model=model_name, label=label, class_id=class_id
        )
        marks = {"key": context.log_fields.get("key", ""), "withdrawn": given.withdrawn, "drawn": given.drawn}
        if not log.add_feedback({**found.model_dump(), **marks}):
            raise Overloaded("The queue of the prediction log is full; try again later.")
        return found

    return api


async def _read(request: Request, context: RequestContext) -> FeedbackBody:
    """The body; raises RequestTooLarge, InvalidBody or InvalidParameter."""
    # A form of any web page could send other types without asking the service first.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise InvalidBody("The body is JSON: send it with 'Content-Type: application/json'.")
    body = await Body(request, context).read_whole(MAX_FEEDBACK_BYTES, "max_feedback_bytes")
    try:
        given = json_text.decode(body, max_bytes=MAX_FEEDBACK_BYTES)
    except json_text.JsonError as exc:
        raise InvalidBody(f"The body cannot be read: {exc}.") from None
    if not isinstance(given, dict):
        raise InvalidBody('The body is a JSON object, such as {"request_id": "…", "index": 0, "label": "cat"}.')
    with reading(FeedbackBody):
        return FeedbackBody.model_validate(given)
