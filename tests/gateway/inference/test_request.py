"""Backpressure of results that the client does not read."""

import asyncio

import pytest

from gateway.inference.backend import InferResult, Row
from gateway.inference.prediction import Prediction, Predictions
from gateway.inference.ready_results import MAX_UNREAD_PREDICTIONS, ReadyResults
from gateway.inference.result import Answer, Result
from tests.doubles.scripted import Body, Loop, ScriptedBackend, query, service_of, start
from tests.gateway.inference.test_service import PNG

MANY = Predictions.of(Prediction("x", number, 0.5) for number in range(MAX_UNREAD_PREDICTIONS // 4))


@pytest.mark.parametrize(("results", "waits"), [(4, False), (5, True)])
async def test_queue_blocks_past_its_limit(results, waits):
    ready = ReadyResults()
    for number in range(results):
        ready.put(Result(number, "x", answer=Answer(MANY)))
    waiting = asyncio.ensure_future(ready.wait_for_space())
    await asyncio.sleep(0)
    assert waiting.done() is not waits
    await anext(ready)
    await waiting


def test_request_stops_reading_until_results_are_taken():
    loop = Loop()
    backend = ScriptedBackend()
    backend.at_once = lambda call: call.outcome.set_result(
        InferResult("m", "1", (Row(decoded=True, predictions=MANY),) * len(call.call.batch))
    )
    service, body = service_of(backend), Body()
    for _ in range(50):
        body.send(PNG)
    body.end()
    may_take, taken = asyncio.Event(), []

    async def stream() -> None:
        async with service.classify(body.uploads(), query()) as results:
            await may_take.wait()
            async for result in results:
                taken.append(result.index)

    request = start(loop, stream())
    loop.settle()
    asked = sum(len(call.call.batch) for call in backend.calls)
    assert 5 <= asked <= 5 + 4 + 1  # past the limit, what was in flight, and one that was read
    may_take.set()
    for _ in range(20):
        loop.settle()
    assert request.done()
    assert sorted(taken) == list(range(50))
    loop.close()
