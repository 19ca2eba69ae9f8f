"""POST /predict: images in, labels and scores out."""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Request
from fastapi import Query as QueryParameter
from starlette.responses import Response

from gateway.api.answers import respond
from gateway.api.body import Body
from gateway.api.parameters import NATIVE, predict_parameters, query_parameters, request_spec, with_form
from gateway.api.request_context import KEY, RequestContext
from gateway.api.route_table import traits
from gateway.api.schemas import FAULTS, REQUEST_BODY
from gateway.api.shapes import Native
from gateway.errors import InvalidParameter
from gateway.inference.answer_shape import AnswerShape
from gateway.inference.expansion import Expansion
from gateway.inference.selection import Selection
from gateway.values.arguments import taking

if TYPE_CHECKING:
    from gateway.hooks import Plugins


JSON = AnswerShape.media_type
CLASSIFIED = "At least one file was classified; each file has its own result."


def router(plugins: "Plugins") -> APIRouter:
    """The route, with the response formats and bodies of some plug-ins."""
    shapes: dict[str, AnswerShape] = {NATIVE: Native(), **plugins.shapes()}
    for shape in shapes.values():
        shape.item = taking(shape.item, Native.item)  # type: ignore[method-assign]
        shape.around = taking(shape.around, Native.around)  # type: ignore[method-assign]
    known = predict_parameters(tuple(shapes))
    names = tuple(known.model_fields)
    schemas = [shape.documents for shape in shapes.values() if shape.media_type == JSON]
    others = {shape.media_type: {"schema": {"type": "string"}} for shape in shapes.values() if shape.media_type != JSON}
    expansions = plugins.expansions()
    api = APIRouter(tags=["classify"])

    def expansion_of(frames: str | None) -> Expansion | None:
        if frames is None:
            return None
        if (expand := expansions.get("frames")) is None:
            raise InvalidParameter("'frames': this service has no plug-in for it.")
        return expand(frames)

    def documented(parameters: Annotated[known, QueryParameter()]) -> None:  # type: ignore[valid-type]
        """Declares the parameters in the OpenAPI document; the endpoint parses them itself."""

    @api.post(
        "/predict",
        summary="Classify images",
        response_model=reduce(or_, schemas),
        responses={200: {"description": CLASSIFIED, **({"content": others} if others else {})}, **FAULTS},
        openapi_extra={"requestBody": REQUEST_BODY},
        dependencies=[Depends(documented)],
    )
    @traits(takes_images=True, direct=True)
    async def predict(request: Request) -> Response:
        """Classify one or more images. Each file gets its own result, in order: a bad file does not affect the others.

        Files are classified as they arrive, while the rest of a large upload is still being received.
        """
        context: RequestContext = request.scope["state"][KEY]
        service, settings = context.service, context.settings
        parameters = query_parameters(known, request.scope["query_string"])
        with context.stats.stages["read"]:
            body = Body(request, context)
            form, uploads = await body.open_uploads(service.tools.policy.limits, names, settles=True)
        check = body.reader.settle(form, parameters.model_fields_set) if form and body.reader is not None else None
        if form:
            parameters = with_form(parameters, form)
        spec = request_spec(
            request,
            context,
            model_name=parameters.model or settings.model,
            version=parameters.version,
            timeout_seconds=parameters.timeout,
            selection=Selection.of(parameters, settings),
            expansion=expansion_of(parameters.frames),
            strict=parameters.strict,
        )
        if check is not None:
            check(spec.model_name, (await service.backend.model(spec.model_name)).multi_label)
        return await respond(context, spec, body, uploads, shapes[parameters.format])

    return api
