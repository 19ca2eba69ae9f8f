"""Calls to an ensemble with RAW_IMAGE and PREDICTION alone: in parts, and image by image after a failure."""

import pytest

from gateway.deadline import Deadline
from gateway.errors import InferenceFailed
from gateway.inference.backend import Batch, Call
from gateway.triton.codec import Codecs, random_image
from gateway.triton.error_table import StubDied
from gateway.triton.sender import Sender
from tests.doubles.triton import KILLER, UNDECODABLE, FakeEndpoint, FakeTriton

PROBE_BYTES = len(random_image().images[0])


@pytest.fixture
def triton() -> FakeTriton:
    return FakeTriton(minimal=True)


def sender(triton: FakeTriton) -> Sender:
    return Sender(FakeEndpoint("10.0.0.1:8001", triton), Codecs().of(triton.config("ensemble_model")), 5, False)


def call(*images: bytes) -> Call:
    return Call(Batch(images, [image[:4] for image in images]), "ensemble_model", "", None, Deadline.after(60), "an id")


def sent(triton: FakeTriton) -> list[list[int]]:
    """The lengths of the images of each call."""
    return [list(map(len, each.batch.images)) for each in triton.calls]


async def test_images_of_different_length_are_sent_in_parts(triton):
    result = await sender(triton).send(call(b"12345", b"123456", b"54321", b"654321"))
    assert [row.decoded for row in result.rows] == [True] * 4
    assert sent(triton) == [[5, 5], [6, 6]]


async def test_call_has_no_more_images_than_the_model_takes(triton):
    result = await sender(triton).send(call(*[b"12345"] * 20))
    assert len(result.rows) == 20
    assert sent(triton) == [[5] * 8, [5] * 8, [5] * 4]


async def test_undecodable_image_leaves_the_others_their_answers(triton):
    good = b"x" * len(UNDECODABLE)
    result = await sender(triton).send(call(good, UNDECODABLE, good))
    assert [row.decoded for row in result.rows] == [True, False, True]
    one = len(good)
    assert sent(triton) == [[one] * 3, [PROBE_BYTES], [one], [one], [one]]


async def test_lone_undecodable_image_is_sent_twice(triton):
    """Its first call may have run together with the image of another client."""
    result = await sender(triton).send(call(UNDECODABLE))
    assert [row.decoded for row in result.rows] == [False]
    assert sent(triton) == [[len(UNDECODABLE)], [PROBE_BYTES], [len(UNDECODABLE)]]


async def test_failing_model_is_no_fault_of_its_images(triton):
    triton.failing = {"net"}
    with pytest.raises(InferenceFailed):
        await sender(triton).send(call(b"12345", b"54321"))
    assert sent(triton) == [[5, 5], [PROBE_BYTES]]


async def test_crash_is_reported_as_one(triton):
    with pytest.raises(StubDied):
        await sender(triton).send(call(KILLER))


async def test_complete_ensemble_reports_images_itself(triton):
    triton.minimal = False
    result = await sender(triton).send(call(b"1", UNDECODABLE))
    assert [row.decoded for row in result.rows] == [True, False]
    assert len(triton.calls) == 1
