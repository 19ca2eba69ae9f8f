"""Responses of any size: checked against a limit before they are built, and built and sent in pieces."""

from collections import deque
from collections.abc import Iterable, Iterator
from http import HTTPStatus

from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.errors import AnswerTooLarge
from gateway.inference.request_spec import Result
from gateway.limits.response_buffer import HeldResponse
from gateway.time_slices import TimeSlice

SCORES_PER_PREDICTION = 10
"""A score without a label, or a number of an embedding, counts as a tenth of a prediction, in bytes and in time."""
PIECE_BYTES = 64 * 1024
RESULT_BYTES, PREDICTION_BYTES = 512, 20
"""Memory of a result without its predictions, and of each prediction; see gateway.inference.prediction."""


def held_bytes(result: Result) -> int:
    """Approximate memory of a result in bytes."""
    numbers = sum(each.nbytes for each in (result.scores, result.vector) if each is not None)
    count = 1 + len(result.frames or ())
    return RESULT_BYTES * count + PREDICTION_BYTES * result.prediction_count + numbers


class AnswerSize:
    """Checks the size of a response, result by result, against the setting `max_predictions`.

    Predictions and scores are counted separately: which of them is sent may be known only after the last image.
    """

    def __init__(self, max_predictions: int) -> None:
        self._most = max_predictions
        self._predictions = self._scores = 0

    def add(self, result: Result) -> None:
        """Count one result; raises AnswerTooLarge."""
        self.add_predictions(result.prediction_count)
        for numbers in (result.scores, result.vector):
            if numbers is not None:
                self._scores += len(numbers)
                self._check()

    def add_predictions(self, count: int) -> None:
        """Count predictions with a label; raises AnswerTooLarge."""
        self._predictions += count
        self._check()

    def _check(self) -> None:
        if max(self._predictions, self._scores / SCORES_PER_PREDICTION) > self._most:
            raise AnswerTooLarge(
                f"The answer would have more than {self._most} predictions: send fewer images or a smaller 'top_k', or "
                f"ask for lines (Accept: application/x-ndjson).",
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
        held: HeldResponse,
        status: HTTPStatus = HTTPStatus.OK,
        media_type: str = "application/json",
    ) -> None:
        self._pieces = pieces
        self._held = held
        self._length = length = sum(map(len, pieces))
        super().__init__(status_code=status, media_type=media_type, headers={"content-length": str(length)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # ASGI's signature
        """Send it."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._held.shrink(self._held.nbytes - self._length)  # the results themselves are released
        time_slice = TimeSlice()
        for piece in _joined(self._pieces):
            await send({"type": "http.response.body", "body": piece, "more_body": bool(self._pieces)})
            self._held.shrink(len(piece))
            await time_slice.pause_if_over()


async def json_array(values: Iterable[object], held: HeldResponse) -> deque[bytes]:
    """Encode values as JSON, separated by commas; `held` counts the bytes. Other tasks run in between."""
    time_slice = TimeSlice()
    pieces: deque[bytes] = deque()
    for value in values:
        if pieces:
            pieces.append(b",")
        pieces.append(to_json(value, inf_nan_mode="null"))
        await held.grow(len(pieces[-1]))
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
