"""An answer with all results at once, in whatever shape."""

from collections.abc import Sequence
from http import HTTPStatus

from gateway.api.answer_room import HeldAnswer
from gateway.api.answers import PiecedAnswer, json_array
from gateway.api.query import status_of
from gateway.api.shapes import AnswerShape
from gateway.inference.query import Query, Result


async def shaped_answer(shape: AnswerShape, query: Query, results: Sequence[Result], held: HeldAnswer) -> PiecedAnswer:
    """Raises a lone file's error where the shape has no place for it, and what `status_of` and `held` raise."""
    status = status_of(results)
    if status is not HTTPStatus.OK and not shape.shows_a_lone_error and len(results) == 1 and results[0].error:
        raise results[0].error
    before, after = shape.around(results, query)
    pieces = await json_array((shape.item(result, query) for result in results), held)
    pieces.appendleft(before)
    pieces.append(after)
    return PiecedAnswer(pieces, held, status)
