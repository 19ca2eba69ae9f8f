"""The response of /predict and /embed: JSON lines as results arrive, or all results at once in a format."""

from collections.abc import Sequence
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from gateway.api.answers import AnswerSize, PiecedAnswer, json_array
from gateway.api.image_route import classify
from gateway.api.ndjson import NDJSON, ResultStream
from gateway.api.request_context import request_context
from gateway.api.service_query import status_of
from gateway.api.shapes import AnswerShape, Native
from gateway.api.state import state
from gateway.errors import InvalidParameter
from gateway.inference.request_spec import RequestSpec, Result
from gateway.ingest.media_types import Uploads
from gateway.limits.response_buffer import HeldResponse


async def answered(request: Request, query: RequestSpec, uploads: Uploads, shape: AnswerShape) -> Response:
    """The response for all uploads.

    Raises InvalidParameter for a feature that only the native format has, and the errors of `classify`.
    """
    native = shape if isinstance(shape, Native) else None
    streamed = NDJSON in request.headers.get("accept", "")
    if streamed and native is None:
        raise InvalidParameter(f"'format': lines ({NDJSON}) are available in the native format only.")
    if query.frames is not None and native is None:
        raise InvalidParameter("'frames': answers for each frame are available in the native format only.")
    if streamed and native is not None:
        return ResultStream(request, query, uploads, native)
    parts = state(request)
    held = request_context(request).resources.enter_context(parts["answers"].open())
    results = await classify(request, uploads, query, AnswerSize(parts["settings"].max_predictions), held)
    return await _shaped(shape, query, results, held)


async def _shaped(
    shape: AnswerShape, query: RequestSpec, results: Sequence[Result], held: HeldResponse
) -> PiecedAnswer:
    """Raises the error of a single file if the format cannot express it, and what `status_of` and `held` raise."""
    status = status_of(results)
    if status is not HTTPStatus.OK and not shape.shows_a_lone_error and len(results) == 1 and results[0].error:
        raise results[0].error
    before, after = shape.around(results, query)
    pieces = await json_array((shape.item(result, query) for result in results), held)
    pieces.appendleft(before)
    pieces.append(after)
    return PiecedAnswer(pieces, held, status)
