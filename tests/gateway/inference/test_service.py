"""The service: tasks, permits and results of requests that end in any way."""

import asyncio
import gc
from dataclasses import replace

import pytest

from gateway.api.body import uploads_from
from gateway.errors import (
    DamagedImage,
    DeadlineExceeded,
    InvalidParameter,
    LoadFailed,
    ModelNotFound,
    ModelUnavailable,
    Overloaded,
    TritonUnreachable,
)
from gateway.inference.request_spec import RequestSpec
from gateway.ingest.inspection import MAX_SIDE
from gateway.ingest.multipart import read_multipart
from gateway.ingest.resizing import Resize
from gateway.ingest.upload import Upload
from tests.doubles.backend import CAT, GIF, PNG
from tests.doubles.scripted import Scripted, ScriptedStep, start
from tests.gateway.ingest.reading import BOUNDARY, CONTENT_TYPE, LIMITS, Part, form

with_and_without_cancellation = pytest.mark.parametrize("supports_cancellation", [True, False])


@pytest.mark.parametrize("error", [ModelNotFound(), InvalidParameter("'labels': the model has no label 'dgo'")])
@with_and_without_cancellation
def test_request_error_ends_the_request_at_once(loop, error, supports_cancellation):
    on = Scripted(loop, supports_cancellation=supports_cancellation, at_once=lambda call: call.fail(error))
    request = on.send(*[PNG] * 200)
    assert request.exception() is error
    assert on.idle
    assert len(on.calls) <= 4


@with_and_without_cancellation
def test_late_call_is_answered_at_the_deadline_and_cancelled_if_it_can_be(loop, supports_cancellation):
    """One that cannot be cancelled keeps its permit."""
    on = Scripted(loop, supports_cancellation=supports_cancellation)
    request = on.send(PNG, timeout_seconds=5)
    on.pass_time(5)
    (result,) = on.results(request)
    assert isinstance(result.error, DeadlineExceeded)
    assert (on.calls[0].cancelled, on.held) == ((True, 0) if supports_cancellation else (False, 1))
    on.answer_all()


@pytest.mark.parametrize("file", [PNG, GIF], ids=["passed on", "decoded"])
def test_answered_file_is_released_while_the_next_one_arrives(loop, file):
    """Neither the upload buffer nor a permit counts its bytes any more."""
    on, ends, results = Scripted(loop), asyncio.Event(), []
    spec = RequestSpec("m", "", None, 30, "r")

    async def slow_client():
        yield form(Part("f", file, "answered"), closed=False) + f"--{BOUNDARY}\r\n".encode()
        await ends.wait()
        yield form(Part("f", file, "second"))[len(BOUNDARY) + 4 :]

    async def serve():
        parts = read_multipart(slow_client(), CONTENT_TYPE, LIMITS)
        first = await anext(parts)
        assert isinstance(first, Upload)
        uploads = uploads_from(first, parts, ())
        del first
        await on.service.run(uploads, spec, results.append)

    def answer() -> None:
        loop.settle()
        if file is GIF:
            on.decode()
        on.answer()
        loop.settle()

    request = start(loop, serve())
    answer()
    on.backend.calls.clear()
    assert [result.filename for result in results] == ["answered"]
    assert not [each for each in gc.get_objects() if type(each) is Upload and each.filename == "answered"]
    ends.set()
    answer()
    loop.finish(request)
    assert [result.error for result in results] == [None, None]


@pytest.mark.parametrize("resize", [None, Resize((224,), "bicubic", fast=True)])
def test_image_is_decoded_to_the_size_of_the_model_input(loop, resize):
    on = Scripted(loop)
    on.backend.wanted = resize
    request = on.send(GIF)
    assert on.decoders.sizes == [resize or MAX_SIDE]
    on.decode()
    on.answer()
    (result,) = on.results(request)
    assert result.error is None


def test_later_image_waits_until_its_deadline(loop):
    on = Scripted(loop, max_images=1, max_wait_seconds=2)
    request = on.send(PNG, PNG, timeout_seconds=5)
    on.pass_time(4)
    assert not request.done()
    on.pass_time(1)
    assert [type(result.error) for result in on.results(request)] == [DeadlineExceeded] * 2


@pytest.mark.parametrize("fault", [ModelNotFound(), ModelUnavailable(), TritonUnreachable()])
def test_split_to_an_unloaded_version_is_a_service_error(loop, fault):
    on = Scripted(loop, at_once=lambda call: call.fail(fault))
    request = on.send(PNG, asked=RequestSpec("m", "2", None, 30, "r", split=True))
    error = request.exception() if isinstance(fault, ModelNotFound) else on.results(request)[0].error
    if isinstance(fault, TritonUnreachable):
        assert error is fault
    else:
        assert isinstance(error, ModelUnavailable)
        message = "Version 2 of 'm', which gets a share of the requests, is not loaded."
        assert (error.message, error.__cause__) == (message, fault)


def test_service_close_waits_a_limited_time_for_uncancelled_work(loop):
    on = Scripted(loop, supports_cancellation=False)
    on.cancel(on.send(PNG))
    closing = on.close()
    assert not closing.done()
    loop.pass_time(5)
    loop.finish(closing)
    assert on.calls[0].cancelled


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("image", [PNG, GIF], ids=["in Triton", "here"])
def test_damaged_image_is_marked_or_refused(loop, image, strict):
    """With `strict`, Triton does not get an image that is decoded here."""
    on = Scripted(loop, at_once=lambda call: call.answer(row=replace(CAT, damaged=image is PNG)))
    request = on.send(image, strict=strict)
    if image is GIF:
        on.decode(damaged=True)
    assert len(on.calls) == (0 if strict and image is GIF else 1)
    (result,) = on.results(request)
    assert result.row.damaged
    assert isinstance(result.error, DamagedImage) is strict
    assert len(result.predictions) == (0 if strict else 1)


@pytest.mark.parametrize("image", [PNG, GIF])
def test_image_holds_nothing_while_its_model_loads(loop, image):
    loads = ScriptedStep()
    on = Scripted(loop, steps=[loads])
    request = on.send(image)
    assert on.idle
    assert not on.decoders.pending
    assert not on.calls
    loads.waits[0].set_result(None)
    loop.settle()
    assert not on.idle
    if image is GIF:
        on.decode()
    on.answer()
    (result,) = on.results(request)
    assert result.error is None


def test_refused_image_loads_no_model(loop):
    loads = ScriptedStep()
    (result,) = Scripted(loop, steps=[loads]).classify(b"no image")
    assert result.error is not None
    assert not loads.waits


@pytest.mark.parametrize(
    "error", [ModelNotFound(), ModelUnavailable(), LoadFailed(), Overloaded(), TritonUnreachable()]
)
def test_load_that_fails_ends_a_request_that_has_not_begun(loop, error):
    loads = ScriptedStep()
    on = Scripted(loop, steps=[loads])
    request = on.send(PNG, PNG)
    loads.waits[0].set_exception(error)
    loop.settle()
    assert request.exception() is error


def test_load_that_fails_later_is_the_error_of_its_file(loop):
    loads = ScriptedStep()
    on = Scripted(loop, steps=[loads])
    request = on.send(PNG, PNG)
    loads.waits[0].set_result(None)
    loop.settle()
    loads.waits[1].set_exception(ModelUnavailable())
    loop.settle()
    on.answer()
    codes = sorted(result.error.code if result.error else "ok" for result in on.results(request))
    assert codes == ["model_unavailable", "ok"]
