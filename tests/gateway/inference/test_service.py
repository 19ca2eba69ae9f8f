"""The service: tasks, permits and results of requests that end in any way."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from starlette.requests import ClientDisconnect

from gateway.errors import (
    DamagedImage,
    DeadlineExceeded,
    GatewayError,
    InvalidBody,
    InvalidParameter,
    LoadFailed,
    ModelNotFound,
    ModelUnavailable,
    Overloaded,
    TritonUnreachable,
)
from gateway.inference.backend import InferResult, Row
from gateway.inference.prediction import Prediction
from gateway.ingest.resizing import Resize
from tests.asking import encode
from tests.doubles.backend import PNG
from tests.doubles.scripted import (
    Body,
    ScriptedBackend,
    ScriptedDecoders,
    ScriptedLoader,
    body_of,
    collected,
    idle,
    query,
    service_of,
    start,
)

GIF = encode(np.zeros((4, 4, 3), np.uint8), ".gif")


@pytest.mark.parametrize("error", [ModelNotFound(), InvalidParameter("'labels': the model has no label 'dgo'")])
@pytest.mark.parametrize("supports_cancellation", [True, False])
def test_request_error_ends_the_request_at_once(loop, error, supports_cancellation):
    backend = ScriptedBackend(supports_cancellation=supports_cancellation)
    backend.at_once = lambda call: call.fail(error)
    service = service_of(backend)
    request = start(loop, collected(service, body_of(*[PNG] * 200), query()))
    loop.settle()
    assert request.done()
    assert request.exception() is error
    assert idle(service)
    assert len(backend.calls) <= 4


@pytest.mark.parametrize("supports_cancellation", [True, False])
def test_request_error_ends_the_request_during_other_calls(loop, supports_cancellation):
    backend = ScriptedBackend(supports_cancellation=supports_cancellation)
    service = service_of(backend)
    request = start(loop, collected(service, body_of(*[PNG] * 200), query()))
    loop.settle()
    first, second = backend.pending
    first.fail(ModelNotFound())
    loop.settle()
    assert isinstance(request.exception(), ModelNotFound)
    assert second.cancelled is supports_cancellation
    assert idle(service) is supports_cancellation
    if not supports_cancellation:
        second.answer()
        loop.settle()
    assert idle(service)
    assert not service.uncancelled


def test_uncancellable_call_keeps_its_permits_until_it_ends(loop):
    backend = ScriptedBackend(supports_cancellation=False)
    service = service_of(backend)
    request = start(loop, collected(service, body_of(PNG), query()))
    loop.settle()
    request.cancel()
    loop.settle()
    assert request.cancelled()
    assert (service.admission.images.held, len(service.uncancelled)) == (1, 1)
    waiting = start(loop, service.uncancelled.idle())
    assert not waiting.done()
    backend.pending[0].fail(TritonUnreachable())
    loop.finish(waiting)
    assert idle(service)
    assert not backend.calls[0].cancelled


def test_late_call_is_answered_at_the_deadline_and_keeps_its_permit(loop):
    backend = ScriptedBackend(supports_cancellation=False)
    service = service_of(backend)
    request = start(loop, collected(service, body_of(PNG), query(timeout_seconds=5)))
    loop.settle()
    loop.pass_time(5)
    (result,) = loop.finish(request)
    assert isinstance(result.error, DeadlineExceeded)
    assert service.admission.images.held == 1
    backend.pending[0].answer()
    loop.settle()
    assert idle(service)


def test_cancellable_call_is_cancelled_at_the_deadline(loop):
    backend = ScriptedBackend()
    service = service_of(backend)
    request = start(loop, collected(service, body_of(PNG), query(timeout_seconds=5)))
    loop.settle()
    loop.pass_time(5)
    (result,) = loop.finish(request)
    assert isinstance(result.error, DeadlineExceeded)
    assert backend.calls[0].cancelled
    assert idle(service)


def test_images_of_a_call_have_deadlines_of_their_own(loop):
    backend = ScriptedBackend()
    service = service_of(backend)
    body = Body()
    request = start(loop, collected(service, body, query(timeout_seconds=5)))
    for _ in range(3):  # two travel alone, the third waits for a call
        body.send(PNG)
        loop.settle()
        loop.pass_time(1)
    body.send(PNG)
    body.end()
    loop.settle()
    backend.pending[0].answer()
    loop.settle()
    assert [len(pending.call.batch) for pending in backend.calls] == [1, 1, 2]
    assert [pending.call.deadline.at - 1_000 for pending in backend.calls] == [5, 6, 8]
    loop.pass_time(4)
    loop.settle()
    assert not backend.calls[2].cancelled
    backend.pending[-1].answer()
    results = sorted(loop.finish(request), key=lambda result: result.index)
    late = (type(None), DeadlineExceeded, DeadlineExceeded, type(None))
    assert tuple(type(result.error) for result in results) == late


def test_disconnect_ends_the_request(loop):
    backend = ScriptedBackend()
    service = service_of(backend)
    gone = asyncio.Event()

    async def leaving() -> None:
        await gone.wait()
        raise ClientDisconnect

    request = start(loop, collected(service, body_of(PNG), query(), leaving))
    loop.settle()
    gone.set()
    loop.settle()
    assert isinstance(request.exception(), ClientDisconnect)
    assert backend.calls[0].cancelled
    assert idle(service)


def test_truncated_body_ends_the_request_and_is_closed(loop):
    backend = ScriptedBackend()
    service = service_of(backend)
    body = Body()
    body.send(PNG)
    request = start(loop, collected(service, body, query()))
    loop.settle()
    body.break_off(InvalidBody())
    loop.settle()
    assert isinstance(request.exception(), InvalidBody)
    assert body.closed
    assert idle(service)


def test_leaving_the_result_iteration_ends_the_request(loop):
    backend = ScriptedBackend()
    backend.at_once = lambda call: call.answer()
    service = service_of(backend)
    body = Body()
    body.send(PNG)

    async def first() -> object:
        async with service.classify(body.uploads(), query()) as results:
            return await anext(results)

    assert loop.finish(start(loop, first())).error is None
    assert body.closed
    assert idle(service)


def test_exception_of_the_consumer_is_raised_unchanged(loop):
    service = service_of(ScriptedBackend())

    async def scenario() -> None:
        async with service.classify(body_of(PNG).uploads(), query()):
            raise KeyError("the consumer's own")

    request = start(loop, scenario())
    loop.settle()
    assert isinstance(request.exception(), KeyError)
    assert idle(service)


def test_late_decode_ends_at_the_deadline_with_its_permit(loop):
    decoders = ScriptedDecoders()
    backend = ScriptedBackend()
    service = service_of(backend, decoders=decoders)
    request = start(loop, collected(service, body_of(GIF), query(timeout_seconds=0.2)))
    loop.settle()
    assert not idle(service)
    loop.pass_time(0.2)
    (result,) = loop.finish(request)
    assert isinstance(result.error, DeadlineExceeded)
    assert not decoders.pending
    assert idle(service)
    assert not backend.calls


@pytest.mark.parametrize("resize", [None, Resize((224,), "bicubic", fast=True)])
def test_image_is_decoded_to_the_size_of_the_model_input(loop, resize):
    decoders, backend = ScriptedDecoders(), ScriptedBackend()
    backend.wanted = resize
    service = service_of(backend, decoders=decoders)
    request = start(loop, collected(service, body_of(GIF), query()))
    loop.settle()
    assert decoders.sizes == [resize or service.tools.policy.max_side]
    decoders.finish()
    loop.settle()
    backend.calls[0].answer()
    (result,) = loop.finish(request)
    assert result.error is None


def test_first_image_that_waits_too_long_ends_the_request(loop):
    backend = ScriptedBackend()
    service = service_of(backend, max_images=1, max_wait_seconds=2)
    first = start(loop, collected(service, body_of(PNG), query()))
    second = start(loop, collected(service, body_of(PNG), query()))
    loop.settle()
    loop.pass_time(2)
    loop.settle()
    refused = second.exception()
    assert isinstance(refused, GatewayError)
    assert refused.details == {"limit": "max_wait_seconds", "value": 2}
    backend.pending[0].answer()
    assert len(loop.finish(first)) == 1
    assert idle(service)


def test_later_image_waits_until_its_deadline(loop):
    backend = ScriptedBackend()
    service = service_of(backend, max_images=1, max_wait_seconds=2)
    request = start(loop, collected(service, body_of(PNG, PNG), query(timeout_seconds=5)))
    loop.settle()
    loop.pass_time(4)
    loop.settle()
    assert not request.done()
    loop.pass_time(1)
    results = loop.finish(request)
    assert [type(result.error) for result in results] == [DeadlineExceeded] * 2
    assert idle(service)


def test_started_request_goes_before_the_newest_waiting_one(loop):
    backend = ScriptedBackend()
    service = service_of(backend, max_images=1, max_images_waiting=1)
    bulk_body = Body()
    bulk_body.send(PNG)
    bulk = start(loop, collected(service, bulk_body, query()))
    loop.settle()
    newcomer = start(loop, collected(service, body_of(PNG), query()))
    loop.settle()
    bulk_body.send(PNG)
    bulk_body.end()
    loop.settle()
    refused = newcomer.exception()
    assert isinstance(refused, GatewayError)
    assert refused.details == {"limit": "max_images_waiting", "value": 1}
    for _ in range(2):
        backend.pending[0].answer()
        loop.settle()
    assert [result.error for result in loop.finish(bulk)] == [None, None]
    assert idle(service)


def test_full_queue_of_started_requests_refuses_a_single_image(loop):
    backend = ScriptedBackend()
    service = service_of(backend, max_images=2, max_images_waiting=1)
    bodies = [Body(), Body()]
    requests = []
    for body in bodies:
        body.send(PNG)
        requests.append(start(loop, collected(service, body, query())))
        loop.settle()
    for body in bodies:
        body.send(PNG)
        body.end()
        loop.settle()
    while backend.pending:
        backend.pending[0].answer()
        loop.settle()
    first, second = map(loop.finish, requests)
    assert [result.error for result in first] == [None, None]
    assert [type(result.error) for result in sorted(second, key=lambda each: each.index)] == [type(None), Overloaded]
    assert idle(service)


def test_split_to_an_unloaded_version_is_a_service_error(loop):
    backend = ScriptedBackend()
    backend.at_once = lambda call: call.fail(ModelNotFound())
    service = service_of(backend)
    request = start(loop, collected(service, body_of(PNG), query(split=True)))
    loop.settle()
    assert isinstance(request.exception(), ModelUnavailable)


def test_service_close_waits_a_limited_time_for_uncancelled_work(loop):
    backend = ScriptedBackend(supports_cancellation=False)
    service = service_of(backend)
    request = start(loop, collected(service, body_of(PNG), query()))
    loop.settle()
    request.cancel()
    closing = start(loop, service.close())
    loop.settle()
    assert not closing.done()
    loop.pass_time(5)
    loop.finish(closing)
    assert backend.calls[0].cancelled
    assert idle(service)


@pytest.mark.parametrize(("strict", "error", "predictions"), [(False, type(None), 1), (True, DamagedImage, 0)])
def test_image_that_triton_reports_as_damaged(loop, strict, error, predictions):
    backend = ScriptedBackend()
    row = Row(decoded=True, predictions=(Prediction("cat", 0, 0.9),))
    backend.at_once = lambda call: call.outcome.set_result(InferResult("m", "1", (replace(row, damaged=True),)))
    (result,) = loop.finish(start(loop, collected(service_of(backend), body_of(PNG), query(strict=strict))))
    assert result.damaged
    assert isinstance(result.error, error)
    assert len(result.predictions) == predictions


@pytest.mark.parametrize("strict", [False, True])
def test_image_that_a_decoder_reports_as_damaged(loop, strict):
    """With `strict` it is refused before Triton has it."""
    backend, decoders = ScriptedBackend(), ScriptedDecoders()
    service = service_of(backend, decoders=decoders)
    request = start(loop, collected(service, body_of(GIF), query(strict=strict)))
    loop.settle()
    decoders.finish(damaged=True)
    loop.settle()
    assert len(backend.calls) == (0 if strict else 1)
    for call in backend.pending:
        call.answer()
    (result,) = loop.finish(request)
    assert result.damaged
    assert isinstance(result.error, DamagedImage) is strict
    assert idle(service)


@pytest.mark.parametrize("image", [PNG, GIF])
def test_image_holds_nothing_while_its_model_loads(loop, image):
    backend, decoders, loader = ScriptedBackend(), ScriptedDecoders(), ScriptedLoader()
    service = service_of(backend, decoders=decoders, loader=loader)
    request = start(loop, collected(service, body_of(image), query()))
    loop.settle()
    assert idle(service)
    assert not decoders.pending
    assert not backend.calls
    loader.loads[0].set_result(None)
    loop.settle()
    assert not idle(service)
    if image is GIF:
        decoders.finish()
        loop.settle()
    backend.pending[0].answer()
    (result,) = loop.finish(request)
    assert result.error is None
    assert idle(service)


def test_refused_image_loads_no_model(loop):
    loader = ScriptedLoader()
    service = service_of(ScriptedBackend(), loader=loader)
    (result,) = loop.finish(start(loop, collected(service, body_of(b"no image"), query())))
    assert result.error is not None
    assert not loader.loads


@pytest.mark.parametrize(
    "error", [ModelNotFound(), ModelUnavailable(), LoadFailed(), Overloaded(), TritonUnreachable()]
)
def test_load_that_fails_ends_a_request_that_has_not_begun(loop, error):
    loader = ScriptedLoader()
    service = service_of(ScriptedBackend(), loader=loader)
    request = start(loop, collected(service, body_of(PNG, PNG), query()))
    loop.settle()
    loader.loads[0].set_exception(error)
    loop.settle()
    assert request.exception() is error
    assert idle(service)


def test_load_that_fails_later_is_the_error_of_its_file(loop):
    backend, loader = ScriptedBackend(), ScriptedLoader()
    service = service_of(backend, loader=loader)
    request = start(loop, collected(service, body_of(PNG, PNG), query()))
    loop.settle()
    loader.loads[0].set_result(None)
    loop.settle()
    loader.loads[1].set_exception(ModelUnavailable())
    loop.settle()
    backend.pending[0].answer()
    results = loop.finish(request)
    assert sorted(result.error.code if result.error else "ok" for result in results) == ["model_unavailable", "ok"]
    assert idle(service)
