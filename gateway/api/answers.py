"""Answers of any size: bounded before they are made, made and sent in pieces, so that no client waits for another's."""

from collections.abc import Iterable, Iterator
from http import HTTPStatus

from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.errors import AnswerTooLarge
from gateway.inference.query import Result
from gateway.turns import Turn

SCORES_PER_PREDICTION = 10
"""A score without its label is a tenth of a prediction, in bytes as in work."""
PIECE_BYTES = 64 * 1024


class AnswerSize:
    """Counts what an answer will hold, result by result, against the setting `max_predictions`.

    Predictions and scores are counted apart: which of them is sent may be known only when all images have come.
    """

    def __init__(self, max_predictions: int) -> None:
        self._most = max_predictions
        self._predictions = self._scores = 0

    def add(self, result: Result) -> None:
        """Count one result; raises AnswerTooLarge."""
        self.add_predictions(len(result.predictions))
        if result.scores is not None:
            self._scores += len(result.scores)
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
    """A body in pieces, of a known length; a client that reads slowly is waited for between them."""

    def __init__(
        self, pieces: Iterable[bytes], status: HTTPStatus = HTTPStatus.OK, media_type: str = "application/json"
    ) -> None:
        self._pieces = list(pieces)
        length = sum(map(len, self._pieces))
        super().__init__(status_code=status, media_type=media_type, headers={"content-length": str(length)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # ASGI's signature
        """Send it."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        *firsts, last = _joined(self._pieces)
        turn = Turn()
        for piece in firsts:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await turn.pause_if_over()
        await send({"type": "http.response.body", "body": last})


async def json_elements(values: Iterable[object]) -> list[bytes]:
    """Values as JSON, with the commas between them; others have their turn meanwhile."""
    turn = Turn()
    pieces: list[bytes] = []
    for value in values:
        if pieces:
            pieces.append(b",")
        pieces.append(to_json(value, inf_nan_mode="null"))
        await turn.pause_if_over()
    return pieces


def _joined(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of PIECE_BYTES or a little more; one at least."""
    held = bytearray()
    for piece in pieces:
        held += piece
        if len(held) >= PIECE_BYTES:
            yield bytes(held)
            held = bytearray()
    yield bytes(held)
