"""The responses of routes that take images: collected or streamed, and limited in size."""

from collections import deque
from collections.abc import Sequence
from http import HTTPStatus
from itertools import repeat
from operator import attrgetter

from pydantic_core import to_json
from starlette.responses import Response

from gateway.api.body import Body
from gateway.api.lines import ResultLines
from gateway.api.pieces import PIECE_BYTES, PiecedAnswer, pieces_of
from gateway.api.request_context import RequestContext
from gateway.api.shapes import NDJSON, Native
from gateway.errors import AnswerTooLarge, ImageError, InvalidParameter, ServiceError
from gateway.inference.answer_shape import AnswerShape
from gateway.inference.request_spec import RequestSpec
from gateway.inference.result import Result
from gateway.ingest.media_types import Uploads
from gateway.limits.pools import NeverEvicted, PoolLease

SCORES_PER_PREDICTION = 10
"""A score without a label, or a number of an embedding, counts as a tenth of a prediction, in bytes and in time."""
RESULT_BYTES, PREDICTION_BYTES = 512, 20
"""Memory of a result without its predictions, and of each prediction; see gateway.inference.prediction."""


async def respond(
    context: RequestContext, spec: RequestSpec, body: Body, uploads: Uploads, shape: AnswerShape
) -> Response:
    """The response of /predict and /embed: JSON lines as results arrive, or all results at once in a format.

    Raises InvalidParameter for a feature that only the native format has, the error of a single file if the format
    cannot express it, and the errors of `classify` and `status_of`.
    """
    native = shape if isinstance(shape, Native) else None
    streamed = NDJSON.encode() in body.headers.get(b"accept", b"")
    if streamed and native is None:
        raise InvalidParameter(f"'format': lines ({NDJSON}) are available in the native format only.")
    if spec.expansion is not None and native is None:
        raise InvalidParameter(spec.expansion.native_only)
    if streamed and native is not None:
        return ResultLines(context, spec, body, uploads, native)
    held = hold_response(context)
    size = AnswerSize(context.settings.max_predictions, held)
    results = await classify(context, spec, body, uploads, size)
    status = status_of(results)
    if status is not HTTPStatus.OK and not shape.shows_a_lone_error and len(results) == 1 and results[0].error:
        raise results[0].error
    before, after = shape.around(results, spec)
    if len(results) == 1:
        item = shape.item(results[0], spec)
        document = before + (item if isinstance(item, bytes) else to_json(item, inf_nan_mode="null")) + after
        if len(document) <= min(PIECE_BYTES, held.held):
            return Response(document, status, media_type=shape.media_type)
        return PiecedAnswer(deque((document,)), held, status, shape.media_type)
    pieces = await pieces_of(map(shape.written, results, repeat(spec)), shape.separator, held)
    pieces.appendleft(before)
    pieces.append(after)
    return PiecedAnswer(pieces, held, status, shape.media_type)


def hold_response(context: RequestContext) -> PoolLease:
    """The lease of the response's bytes, while they are collected and sent; the request releases it."""
    lease = PoolLease(context.shared["responses"], context.shared.get("reader") or NeverEvicted())
    context.leases.append(lease)
    return lease


async def classify(
    context: RequestContext, spec: RequestSpec, body: Body, uploads: Uploads, size: "AnswerSize"
) -> list[Result]:
    """Classify all uploads; returns the results in the order of their files.

    Raises AnswerTooLarge as soon as the limit is exceeded, Overloaded if the response buffer is full, and
    ClientDisconnect if the client disconnects.
    """
    results = size.results
    await context.service.run(uploads, spec, size.take, body.wait_for_disconnect)
    return results if len(results) == 1 else sorted(results, key=attrgetter("index"))


def status_of(results: Sequence[Result]) -> HTTPStatus:
    """200 if at least one file was classified; else the error's status for one file, 422 for several.

    Raises the first ServiceError if all files failed with one.
    """
    errors = []
    for result in results:
        if result.row.error is None:
            return HTTPStatus.OK
        errors.append(result.row.error)
    faults = [error for error in errors if isinstance(error, ServiceError)]
    if len(faults) == len(errors):
        raise faults[0]
    return faults[0].status if faults else errors[0].status if len(errors) == 1 else ImageError.status


class AnswerSize:
    """Collects results, checks their size against the setting `max_predictions`, and counts their memory in `held`.

    Predictions and scores are counted separately: which of them is sent may be known only after the last image.
    """

    def __init__(self, max_predictions: int, held: PoolLease) -> None:
        self._most = max_predictions
        self._held = held
        self._predictions = self._scores = 0
        self.results: list[Result] = []

    def take(self, result: Result) -> None:
        """Count one result; raises AnswerTooLarge, and Overloaded if the response buffer is full."""
        predictions, results = result.size
        nbytes = RESULT_BYTES * results + PREDICTION_BYTES * predictions
        for numbers in (result.row.scores, result.row.embedding):
            if numbers is not None:
                self._scores += len(numbers)
                nbytes += numbers.nbytes
        self._predictions += predictions
        if self._predictions > self._most or self._scores > self._most * SCORES_PER_PREDICTION:
            raise self._too_large()
        self._held.hold(self._held.held + nbytes)
        self.results.append(result)

    def add_predictions(self, count: int) -> None:
        """Count predictions with a label; raises AnswerTooLarge."""
        self._predictions += count
        if self._predictions > self._most:
            raise self._too_large()

    def _too_large(self) -> AnswerTooLarge:
        return AnswerTooLarge(
            f"The answer would have more than {self._most:,} predictions: send fewer images or a smaller 'top_k', "
            f"or ask for lines (Accept: application/x-ndjson).",
            limit="max_predictions",
            value=self._most,
        )
