"""Answers of all results at once: the brackets around them, their status, and the pieces that are sent."""

from collections.abc import Callable, Sequence
from http import HTTPStatus

from pydantic_core import to_json

from gateway.api.answer_room import HeldAnswer
from gateway.api.answers import PiecedAnswer, json_array
from gateway.api.query import status_of
from gateway.api.schemas import ModelOut, summarise
from gateway.inference.query import Query, Result


async def native_answer(
    query: Query, results: Sequence[Result], shaped: Callable[[Result], object], held: HeldAnswer
) -> PiecedAnswer:
    """An answer in the native shape, with each result as `shaped` has it; raises what `status_of` and `held` raise."""
    status = status_of(results)
    version = next((result.model_version for result in results if result.model_version), None)
    before = b'{"model":%b,"results":[' % to_json(ModelOut(name=query.model_name, version=version))
    after = b'],"summary":%b}' % to_json(summarise(results))
    return await _answer(results, shaped, (before, after), held, status)


async def foreign_answer(
    results: Sequence[Result], shaped: Callable[[Result], object], brackets: tuple[bytes, bytes], held: HeldAnswer
) -> PiecedAnswer:
    """The answer of another service, between its brackets.

    Raises a lone file's error, as these shapes have no place for it, and what `status_of` and `held` raise.
    """
    status = status_of(results)
    if status is not HTTPStatus.OK and len(results) == 1 and results[0].error:
        raise results[0].error
    return await _answer(results, shaped, brackets, held, status)


async def _answer(
    results: Sequence[Result],
    shaped: Callable[[Result], object],
    brackets: tuple[bytes, bytes],
    held: HeldAnswer,
    status: HTTPStatus,
) -> PiecedAnswer:
    before, after = brackets
    pieces = await json_array(map(shaped, results), held)
    pieces.appendleft(before)
    pieces.append(after)
    return PiecedAnswer(pieces, held, status)
