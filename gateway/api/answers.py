"""The responses of routes that take images: collected or streamed, and limited in size."""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing
from http import HTTPStatus
from operator import attrgetter
from typing import Any, ClassVar

from pydantic_core import to_json
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api.body import Body
from gateway.api.request_context import RequestContext
from gateway.api.schemas import PredictResponse
from gateway.errors import AnswerTooLarge, GatewayError, ImageError, InvalidParameter, ServiceError, problem_document
from gateway.inference.answer_shape import AnswerShape
from gateway.inference.request_spec import RequestSpec
from gateway.inference.result import Prediction, Predictions, Result
from gateway.inference.tasks import Tasks
from gateway.ingest.upload import Uploads
from gateway.limits.pools import PoolLease
from gateway.timing import TimeSlice

NDJSON = "application/x-ndjson"
"""The media type of JSON lines, which only the native format has."""


class Native(AnswerShape):
    """The gateway's own format: the model, the results and a summary."""

    documents: ClassVar[Any] = PredictResponse
    shows_a_lone_error = True

    def item(self, result: Result, spec: RequestSpec) -> dict[str, object]:  # noqa: ARG002
        """The members of `ResultOut`, as plain data: 1,000 model objects take five times as long."""
        row, error = result.row, result.row.error
        out: dict[str, object] = {
            "index": result.index,
            "filename": result.filename,
            "status": "ok" if error is None else "error",
            "width": result.width,
            "height": result.height,
            "predictions": predictions_out(row.predictions),
            "error": None if error is None else error_out(error),
        }
        if row.damaged and error is None:
            out["warning"] = "damaged"
        out.update(result.members())
        return out

    def around(self, results: Sequence[Result], spec: RequestSpec) -> tuple[bytes, bytes]:
        """The model before the results, the summary after them."""
        version, failed = None, 0
        for result in results:
            version = version or result.row.model_version or None
            failed += result.row.error is not None
        summary = {"ok": len(results) - failed, "failed": failed}
        model = {"name": spec.model_name, "version": version}
        return b'{"model":%b,"results":[' % to_json(model), b'],"summary":%b}' % to_json(summary)


def predictions_out(predictions: Iterable[Prediction]) -> list[dict[str, object]]:
    """Convert predictions to plain data."""
    known = predictions if isinstance(predictions, Predictions) else Predictions.of(predictions)
    return [
        {"label": label, "class_id": class_id, "score": score}
        for label, class_id, score in zip(known.labels, known.class_ids, known.scores, strict=True)
    ]


def error_out(error: GatewayError) -> dict[str, str]:
    """Convert an error to plain data."""
    return {"code": error.code, "message": error.message}


PIECE_BYTES = 64 * 1024


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
        """Send it; raises Overloaded, before anything is sent, if the response buffer is full."""
        self._held.hold(self._length)  # the results themselves are released
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        time_slice = TimeSlice()
        for piece in _joined(self._pieces):
            await send({"type": "http.response.body", "body": piece, "more_body": bool(self._pieces)})
            if self._pieces:  # the bytes of the last piece are released with the request
                self._held.grow(-len(piece))
                await time_slice.pause_if_over()


def item_bytes(item: object) -> bytes:
    """The bytes of an `AnswerShape.item`."""
    return item if isinstance(item, bytes) else to_json(item, inf_nan_mode="null")


async def pieces_of(items: Iterable[bytes], separator: bytes, held: PoolLease) -> deque[bytes]:
    """The items with a separator between them; `held` counts every PIECE_BYTES. Other tasks run in between."""
    time_slice = TimeSlice()
    pieces: deque[bytes] = deque()
    uncounted_bytes = 0
    for item in items:
        if pieces:
            pieces.append(separator)
        pieces.append(item)
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


MAX_UNREAD_BYTES = 2**20
"""Bytes of lines that are not sent yet, above which a request stops reading uploads."""


class ResultLines(Response):
    """One line per file in the order of completion, then a line with the summary.

    A request that fails before its first line gets the error's status. Later the status has been sent already, so the
    error is a line. A client may keep sending without reading its results; uploads are then no longer read.
    """

    media_type = NDJSON

    def __init__(self, context: RequestContext, spec: RequestSpec, body: Body, uploads: Uploads, shape: Native) -> None:
        super().__init__()
        self._context = context
        self._spec = spec
        self._request_body = body
        self._uploads = uploads
        self._shape = shape
        self._ok = self._failed = 0
        self._version: str | None = None
        self._lines: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        """The lines, or the error that ends the request before the first one; None is the end."""
        self._unread_bytes = 0
        self._sent = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # ASGI's signature
        """Send the lines while the body is still being read."""
        del self.headers["content-length"]
        started = False
        try:
            async with Tasks() as tasks:
                tasks.start(self._classify())
                while (line := await self._lines.get()) is not None:
                    if isinstance(line, Exception):
                        try:
                            raise line
                        finally:
                            del line  # its traceback keeps the request
                    if not started:
                        started = True
                        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    await send({"type": "http.response.body", "body": line, "more_body": True})
                    self._unread_bytes -= len(line)
                    self._sent.set()
        except ClientDisconnect:
            self._context.note_disconnect()
            return
        await send({"type": "http.response.body", "body": b""})

    async def _classify(self) -> None:
        """Classify the uploads, and queue the lines."""
        body, service = self._request_body, self._context.service
        try:
            await service.run(self._paced(), self._spec, self._take, body.wait_for_disconnect)
        except Exception as error:
            if not isinstance(error, GatewayError) or not self._ok + self._failed:
                self._lines.put_nowait(error)
                return
            self._context.note(error)
            self._put({"error": problem_document(error, self._context.request_id)})
        model = {"name": self._spec.model_name, "version": self._version}
        self._put({"model": model, "summary": {"ok": self._ok, "failed": self._failed}})
        self._lines.put_nowait(None)

    async def _paced(self) -> Uploads:
        """The uploads; none is read while more than MAX_UNREAD_BYTES wait."""
        async with aclosing(self._uploads) as uploads:
            while True:
                while self._unread_bytes > MAX_UNREAD_BYTES:
                    self._sent.clear()
                    await self._sent.wait()
                upload = await anext(uploads, None)
                if upload is None:
                    return
                yield upload
                del upload  # nothing counts its bytes while the next one arrives

    def _take(self, result: Result) -> None:
        self._failed += result.error is not None
        self._ok += result.error is None
        self._version = self._version or result.row.model_version or None
        model = {"name": self._spec.model_name, "version": result.row.model_version or None}
        self._put({**self._shape.item(result, self._spec), "model": model})

    def _put(self, members: dict[str, Any]) -> None:
        line = to_json(members, inf_nan_mode="null") + b"\n"
        self._unread_bytes += len(line)
        self._lines.put_nowait(line)


MAX_PREDICTIONS = 100_000
"""Predictions in one response; JSON lines are not bounded, since none waits for another."""
SCORES_PER_PREDICTION = 10
"""A score without a label, or a number of an embedding, counts as a tenth of a prediction, in bytes and in time."""
RESULT_BYTES, PREDICTION_BYTES = 512, 20
"""Memory of a result without its predictions, and of each prediction; see gateway.inference.backend."""


async def respond(
    context: RequestContext, spec: RequestSpec, body: Body, uploads: Uploads, shape: AnswerShape
) -> Response:
    """The response of /predict and /embed: JSON lines as results arrive, or all results at once in a format.

    Raises InvalidParameter for lines in another format than the native one, the error of a single file if the format
    cannot express it, and the errors of `Collected.classify` and `status_of`.
    """
    native = shape if isinstance(shape, Native) else None
    streamed = NDJSON.encode() in body.headers.get(b"accept", b"")
    if streamed and native is None:
        raise InvalidParameter(f"'format': lines ({NDJSON}) are available in the native format only.")
    if streamed and native is not None:
        return ResultLines(context, spec, body, uploads, native)
    collected = Collected(context)
    results = await collected.classify(spec, body, uploads)
    status = status_of(results)
    if status is not HTTPStatus.OK and not shape.shows_a_lone_error and len(results) == 1 and results[0].error:
        raise results[0].error
    before, after = shape.around(results, spec)
    if len(results) == 1:
        document = before + item_bytes(shape.item(results[0], spec)) + after
        if len(document) <= min(PIECE_BYTES, collected.lease.held):
            return Response(document, status, {"content-type": shape.media_type})
        return PiecedAnswer(deque((document,)), collected.lease, status, shape.media_type)
    items = (item_bytes(shape.item(result, spec)) for result in results)
    pieces = await pieces_of(items, shape.separator, collected.lease)
    pieces.appendleft(before)
    pieces.append(after)
    return PiecedAnswer(pieces, collected.lease, status, shape.media_type)


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


class Collected:
    """Collects the results of a request, and checks their number against MAX_PREDICTIONS.

    `lease` holds their bytes in the response buffer, and then those of the response; the request releases it.

    Predictions and scores are counted separately: which of them is sent may be known only after the last image.
    """

    def __init__(self, context: RequestContext) -> None:
        self.lease = PoolLease(context.runtime.responses, context.reader)
        context.leases.append(self.lease)
        self._service = context.service
        self._most = MAX_PREDICTIONS
        self._predictions = self._scores = 0
        self._results: list[Result] = []

    async def classify(self, spec: RequestSpec, body: Body, uploads: Uploads) -> list[Result]:
        """Classify all uploads; returns the results in the order of their files.

        Raises AnswerTooLarge as soon as the limit is exceeded, Overloaded if the response buffer is full, and
        ClientDisconnect if the client disconnects.
        """
        await self._service.run(uploads, spec, self._take, body.wait_for_disconnect)
        return self._results if len(self._results) == 1 else sorted(self._results, key=attrgetter("index"))

    def _take(self, result: Result) -> None:
        predictions, results = result.size
        nbytes = RESULT_BYTES * results + PREDICTION_BYTES * predictions
        for numbers in (result.row.scores, result.row.embedding):
            if numbers is not None:
                self._scores += len(numbers)
                nbytes += numbers.nbytes
        self._predictions += predictions
        if self._predictions > self._most or self._scores > self._most * SCORES_PER_PREDICTION:
            raise self._too_large()
        self.lease.grow(nbytes)
        self._results.append(result)

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
