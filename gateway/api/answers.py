"""The responses of routes that take images: collected or streamed, limited in size, built and sent in pieces."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from http import HTTPStatus
from itertools import repeat
from operator import attrgetter

from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api.body import Body
from gateway.api.lines import NDJSON, LinedResponse, SendLine
from gateway.api.request_context import RequestContext
from gateway.api.schemas import ModelOut, StreamedSummary, SummaryOut
from gateway.api.shapes import Native
from gateway.errors import AnswerTooLarge, ImageError, InvalidParameter, ServiceError
from gateway.inference.answer_shape import AnswerShape
from gateway.inference.ready_results import ReadyResults
from gateway.inference.request_spec import RequestSpec
from gateway.inference.result import Result
from gateway.ingest.media_types import Uploads
from gateway.limits.pools import PoolLease
from gateway.time_slices import TimeSlice

SCORES_PER_PREDICTION = 10
"""A score without a label, or a number of an embedding, counts as a tenth of a prediction, in bytes and in time."""
PIECE_BYTES = 64 * 1024
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
    held = context.hold_response()
    results = await classify(context, spec, body, uploads, AnswerSize(context.settings.max_predictions), held)
    status = status_of(results)
    if status is not HTTPStatus.OK and not shape.shows_a_lone_error and len(results) == 1 and results[0].error:
        raise results[0].error
    before, after = shape.around(results, spec)
    pieces = await json_array(map(shape.item, results, repeat(spec)), held)
    pieces.appendleft(before)
    pieces.append(after)
    return PiecedAnswer(pieces, held, status)


async def classify(
    context: RequestContext, spec: RequestSpec, body: Body, uploads: Uploads, size: "AnswerSize", held: PoolLease
) -> list[Result]:
    """Classify all uploads; returns the results in the order of their files.

    Raises AnswerTooLarge as soon as the limit is exceeded, Overloaded if the response buffer is full, and
    ClientDisconnect if the client disconnects.
    """
    results: list[Result] = []

    def take(result: Result) -> None:
        held.grow(size.add(result))
        results.append(result)

    await context.service.run(uploads, spec, take, body.wait_for_disconnect)
    return results if len(results) == 1 else sorted(results, key=attrgetter("index"))


def status_of(results: Sequence[Result]) -> HTTPStatus:
    """200 if at least one file was classified; else the error's status for one file, 422 for several.

    Raises the first ServiceError if all files failed with one.
    """
    errors = []
    for result in results:
        if result.error is None:
            return HTTPStatus.OK
        errors.append(result.error)
    faults = [error for error in errors if isinstance(error, ServiceError)]
    if len(faults) == len(errors):
        raise faults[0]
    return faults[0].status if faults else errors[0].status if len(errors) == 1 else ImageError.status


class AnswerSize:
    """Checks the size of a response, result by result, against the setting `max_predictions`.

    Predictions and scores are counted separately: which of them is sent may be known only after the last image.
    """

    def __init__(self, max_predictions: int) -> None:
        self._most = max_predictions
        self._predictions = self._scores = 0

    def add(self, result: Result) -> int:
        """Count one result, and return its approximate memory in bytes; raises AnswerTooLarge."""
        predictions = result.prediction_count
        nbytes = RESULT_BYTES * result.parts + PREDICTION_BYTES * predictions
        for numbers in (result.answer.scores, result.answer.embedding):
            if numbers is not None:
                self._scores += len(numbers)
                nbytes += numbers.nbytes
        self._predictions += predictions
        if self._predictions > self._most or self._scores > self._most * SCORES_PER_PREDICTION:
            raise self._too_large()
        return nbytes

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


class PiecedAnswer(Response):
    """A response body in pieces, with a known length; waits between the pieces for a client that reads slowly.

    `held` counts the bytes that are not sent yet.
    """

    def __init__(
        self,
        pieces: deque[bytes],
        held: PoolLease,
        status: HTTPStatus = HTTPStatus.OK,
        media_type: str = "application/json",
    ) -> None:
        self._pieces = pieces
        self._held = held
        self._length = length = sum(map(len, pieces))
        self.status_code, self.background = status, None
        self.raw_headers = [(b"content-length", b"%d" % length), (b"content-type", media_type.encode())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # ASGI's signature
        """Send it."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if self._length <= min(PIECE_BYTES, self._held.held):
            await send({"type": "http.response.body", "body": b"".join(self._pieces)})
            return
        self._held.hold(self._length)  # the results themselves are released
        time_slice = TimeSlice()
        for piece in _joined(self._pieces):
            await send({"type": "http.response.body", "body": piece, "more_body": bool(self._pieces)})
            if self._pieces:  # the bytes of the last piece are released with the request
                self._held.grow(-len(piece))
                await time_slice.pause_if_over()


async def json_array(values: Iterable[object], held: PoolLease) -> deque[bytes]:
    """Encode values as JSON, separated by commas; `held` counts every PIECE_BYTES. Other tasks run in between."""
    time_slice = TimeSlice()
    pieces: deque[bytes] = deque()
    uncounted_bytes = 0
    for value in values:
        if pieces:
            pieces.append(b",")
        pieces.append(to_json(value, inf_nan_mode="null"))
        uncounted_bytes += len(pieces[-1])
        if uncounted_bytes > PIECE_BYTES:
            held.grow(uncounted_bytes)
            uncounted_bytes = 0
        await time_slice.pause_if_over()
    return pieces


def _joined(pieces: deque[bytes]) -> Iterator[bytes]:
    """Join pieces to PIECE_BYTES or slightly more, and yield at least one; the deque is emptied."""
    joined = bytearray()
    while pieces:
        joined += pieces.popleft()
        if pieces and len(joined) >= PIECE_BYTES:
            yield bytes(joined)
            joined = bytearray()
    yield bytes(joined)


class ResultLines(LinedResponse):
    """One line per file in the order of completion, then a line with the summary."""

    def __init__(self, context: RequestContext, spec: RequestSpec, body: Body, uploads: Uploads, shape: Native) -> None:
        super().__init__(context, spec, body, uploads)
        self._shape = shape
        self._ok = self._failed = 0
        self._version: str | None = None

    async def write(self, results: ReadyResults, send_line: SendLine) -> None:
        """Send a line for each result."""
        async for result in results:
            self._failed += result.error is not None
            self._ok += result.error is None
            self._version = self._version or result.model_version
            model = {"name": self.spec.model_name, "version": result.model_version}
            await send_line(to_json({**self._shape.item(result, self.spec), "model": model}, inf_nan_mode="null"))

    def last_line(self) -> bytes:
        """The summary."""
        summary = SummaryOut(ok=self._ok, failed=self._failed)
        model = ModelOut(name=self.spec.model_name, version=self._version)
        return StreamedSummary(model=model, summary=summary).model_dump_json().encode()
