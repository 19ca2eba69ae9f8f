"""Answers of any size: bounded before they are made, made and sent in pieces, so that no client waits for another's."""

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
"""A score without its label, or a number of a vector, is a tenth of a prediction, in bytes as in work."""
PIECE_BYTES = 64 * 1024
RESULT_BYTES, PREDICTION_BYTES = 512, 20
"""What a result holds without its predictions, and with each of them; see gateway.inference.prediction."""


def held_bytes(result: Result) -> int:
    """What a result holds, more or less."""
    numbers = sum(each.nbytes for each in (result.scores, result.vector) if each is not None)
    count = 1 + len(result.frames or ())
    return RESULT_BYTES * count + PREDICTION_BYTES * result.prediction_count + numbers


class AnswerSize:
    """Counts what an answer will hold, result by result, against the setting `max_predictions`.

    Predictions and scores are counted apart: which of them is sent may be known only when all images have come.
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
    """A body in pieces, of a known length; a client that reads slowly is waited for between them.

    `held` counts what is not sent yet.
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
        self._held.shrink(self._held.nbytes - self._length)  # the results themselves are gone
        turn = TimeSlice()
        for piece in _joined(self._pieces):
            await send({"type": "http.response.body", "body": piece, "more_body": bool(self._pieces)})
            self._held.shrink(len(piece))
            await turn.pause_if_over()


async def json_array(values: Iterable[object], held: HeldResponse) -> deque[bytes]:
    """Values as JSON with commas between them, `held` from now on; others have their turn meanwhile."""
    turn = TimeSlice()
    pieces: deque[bytes] = deque()
    for value in values:
        if pieces:
            pieces.append(b",")
        pieces.append(to_json(value, inf_nan_mode="null"))
        await held.grow(len(pieces[-1]))
        await turn.pause_if_over()
    return pieces


def _joined(pieces: deque[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of PIECE_BYTES or a little more, one at least; those that came are given up."""
    joined = bytearray()
    while pieces:
        joined += pieces.popleft()
        if pieces and len(joined) >= PIECE_BYTES:
            yield bytes(joined)
            joined = bytearray()
    yield bytes(joined)
