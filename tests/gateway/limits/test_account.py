"""The account of a request: nothing beyond it is spent, and nothing is charged twice."""

import asyncio

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.errors import TooCostly
from gateway.ingest.image_formats import Header, ImageFormat, expected_seconds, most_seconds, reserve_seconds
from gateway.limits.account import (
    SECONDS_PER_IMAGE,
    SECONDS_PER_MEGABYTE,
    SECONDS_PER_MEGABYTE_OF_SLOW_CODECS,
    Account,
)

BASE, MOST = 3.0, 3.0
MEGAPIXELS = 1_000_000


def account(seconds=BASE, most=MOST):
    return Account(seconds, most)


async def decode(account, expected, takes, most=MOST):
    """Decode an image for `takes` seconds, or as long as it may; returns the seconds that it took."""
    async with account.reserve(expected, most) as cpu_seconds:
        await asyncio.sleep(0)
        spent_seconds = min(takes, cpu_seconds)
        account.spend(spent_seconds)
    return spent_seconds


@pytest.mark.parametrize(
    ("slow", "per_megabyte"), [(False, SECONDS_PER_MEGABYTE), (True, SECONDS_PER_MEGABYTE_OF_SLOW_CODECS)]
)
async def test_account_grows_with_images_and_bytes(slow, per_megabyte):
    request = account()
    request.add_image(10**6)
    if slow:
        request.add_slow_codec(10**6)
    assert request.try_pay(BASE + SECONDS_PER_IMAGE + per_megabyte - 1e-6)
    assert not request.try_pay(1e-3)


async def test_account_pays_up_to_its_limit():
    request = account()
    assert request.try_pay(BASE)
    assert not request.try_pay(1e-6)
    with pytest.raises(TooCostly, match=r"3\.00 s of processor time .* \(request_cpu_seconds\)") as caught:
        await request.pay(1e-6)
    assert caught.value.details == {"limit": "request_cpu_seconds", "value": BASE}
    with pytest.raises(TooCostly):
        request.check()
    request.add_image()
    request.check()
    assert request.try_pay(SECONDS_PER_IMAGE / 2)


async def test_account_of_a_stream_refills_to_its_initial_balance():
    stream = Account(BASE, MOST, is_stream=True)
    stream.add_image(10**7)
    assert stream.try_pay(BASE)
    with pytest.raises(TooCostly, match="1 s of processor time a second"):
        await stream.pay(0.1)
    for seconds, regained in ((0.5, 0.5), (3_600, BASE)):
        stream.regain(seconds)
        assert stream.try_pay(regained)
        assert not stream.try_pay(0.01)


async def test_decode_cancelled_while_it_waits_is_not_charged():
    request = account()
    async with request.reserve(3.0, MOST):
        waiting = asyncio.ensure_future(decode(request, 1.0, 1.0))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    assert request.spent_seconds == 0
    assert request.try_pay(BASE)


@given(
    files=st.lists(
        st.tuples(
            st.integers(0, 3_000_000),  # bytes
            st.floats(0, 4),  # what it should take
            st.floats(0, 8),  # what it would take
            st.booleans(),  # decoded here, or in the preprocessor
        ),
        max_size=40,
    ),
    at_once=st.integers(1, 8),
)
def test_request_takes_at_most_its_account_and_one_image(files, at_once):
    """For all files, and any number of concurrent decodings."""

    async def scenario():
        request, slots, taken, allowed = account(), asyncio.Semaphore(at_once), [], [BASE]

        async def one(nbytes, expected, takes, here):
            async with slots:
                request.add_image(nbytes)
                allowed.append(SECONDS_PER_IMAGE + nbytes / 1e6 * SECONDS_PER_MEGABYTE)
                try:
                    if here:
                        taken.append(await decode(request, expected, takes))
                    else:
                        await request.pay(min(expected, MOST))
                        taken.append(min(expected, MOST))
                except TooCostly:
                    return
                assert sum(taken) <= sum(allowed) + MOST + 1e-6

        await asyncio.gather(*(one(*file) for file in files))
        assert request.spent_seconds == pytest.approx(sum(taken))

    asyncio.run(scenario())


HONEST = {
    "photograph of 12 MP": (ImageFormat.JPEG, 12.0, 2_000_000, 0.12),
    "photograph of 12 MP, progressive": (ImageFormat.JPEG, 12.0, 2_000_000, 0.2, 10),
    "photograph of 50 MP": (ImageFormat.JPEG, 50.0, 12_000_000, 0.5),
    "picture of a messenger": (ImageFormat.JPEG, 2.0, 150_000, 0.02),
    "thumbnail": (ImageFormat.JPEG, 0.05, 10_000, 0.001),
    "screenshot": (ImageFormat.PNG, 2.0, 50_000, 0.02),
    "photograph as PNG": (ImageFormat.PNG, 12.0, 18_000_000, 0.45),
    "photograph as TIFF": (ImageFormat.TIFF, 12.0, 36_000_000, 0.3),
    "photograph as WebP": (ImageFormat.WEBP, 2.0, 130_000, 0.02),
    "photograph as HEIC": (ImageFormat.HEIC, 12.0, 1_500_000, 0.3),
    "photograph as AVIF": (ImageFormat.AVIF, 12.0, 1_000_000, 0.42),
    "scan as JPEG 2000": (ImageFormat.JPEG_2000, 8.0, 1_000_000, 0.5),
}
"""Ordinary images: format, megapixels, bytes, seconds that it takes on a core of a small server, and scans."""


@given(
    kinds=st.lists(st.sampled_from(sorted(HONEST)), max_size=60), at_once=st.integers(1, 8), slower=st.floats(1, 2.5)
)
@example(kinds=["photograph as AVIF"] * 5 + ["photograph of 12 MP, progressive"], at_once=6, slower=2.0)
def test_ordinary_images_are_never_refused(kinds, at_once, slower):
    """In any order, on a machine 2.5 times as slow."""

    async def scenario():
        request, slots = account(), asyncio.Semaphore(at_once)

        async def one(image_format, megapixels, nbytes, seconds, scans=1):
            info = Header(image_format, int(megapixels * MEGAPIXELS / 1_000), 1_000, scans=scans)
            async with slots:
                request.add_image(nbytes)
                if image_format.traits.slow:
                    request.add_slow_codec(nbytes)
                expected = expected_seconds(info, nbytes)
                if info.width * info.height <= 4 * MEGAPIXELS:
                    await request.pay(expected)
                    return
                takes = seconds * slower
                assert await decode(request, reserve_seconds(expected), takes, most_seconds(info, nbytes)) == takes

        await asyncio.gather(*(one(*HONEST[kind]) for kind in kinds))

    asyncio.run(scenario())
