"""Animations that stay open in a decoder's process between their frames."""

import asyncio
import contextlib
import os
import signal

import numpy as np
import pytest

from gateway.errors import TooCostly, TooManyFrames, UndecodableImage
from gateway.ingest.image_formats import ImageFormat, open_bytes
from gateway.ingest.inspection import inspect
from gateway.plugins.media import open_files
from gateway.plugins.media.animation import read_frames
from gateway.plugins.media.frame_selection import MOST_IN_FILE
from gateway.plugins.media.open_files import OpenFile
from tests.animations import FORMATS, animated, apng_that_promises, gif_of, level_of
from tests.gateway.decoder.pools import DECODE_LIMITS, MAX_SIDE, decoded_here, decoders, info_of, works
from tests.gateway.ingest.reading import LIMITS
from tests.samples import encode, photograph


@contextlib.asynccontextmanager
async def opened(pool, data, frames="all", most=1_000, account=None):
    account = account or pool.account()
    info = inspect(data, LIMITS)
    if isinstance(info, ImageFormat):
        info = await pool.read_header(data, info, account)
    assert info.animated
    async with OpenFile(pool, data, info, MAX_SIDE, account, read_frames(frames, most)) as opened_file:
        yield opened_file


async def rest(reader):
    frames = []
    while reader.has_next:
        frames.append(await reader.next())
    return frames


async def read(pool, data, frames="all", most=1_000):
    async with opened(pool, data, frames, most) as reader:
        return await rest(reader)


@pytest.mark.parametrize("image_format", FORMATS)
async def test_first_frame_equals_the_still_image(pool, image_format):
    shown = photograph().convert("RGB")
    data = encode(shown, image_format, save_all=True, append_images=[shown.rotate(90)], duration=100)
    ((*_, pixels),) = await read(pool, data, "1")
    alone = decoded_here(data)
    assert np.abs(np.frombuffer(pixels, np.uint8).astype(int) - np.frombuffer(alone, np.uint8)).mean() < 0.5


async def test_frame_without_a_duration_lasts_a_tenth_of_a_second(pool):
    frames = await read(pool, animated("GIF", [1, 2, 3], duration=0))
    assert [seconds for _, seconds, _ in frames] == pytest.approx([0, 0.1, 0.2])


async def only_worker(pool):
    """The pool's process, once it is idle and the other processes of earlier frames have ended."""
    async with asyncio.timeout(60):
        while len(pool._idle) != 1:  # noqa: ASYNC110 - the pool tells nobody
            await asyncio.sleep(0.001)
    (worker,) = pool._idle
    return worker


async def test_abandoned_animation_ends_its_process(pool):
    async with opened(pool, animated("GIF", range(3))) as reader:
        await reader.next()
        (worker,) = pool._busy
    assert not worker.alive()
    assert [bound.free for bound in pool.open_slots.bounds] == [1, DECODE_LIMITS.memory_bytes]
    assert await works(pool)


@pytest.mark.parametrize("frames", ["1", "all"])
@pytest.mark.parametrize(
    "bomb",
    [lambda: gif_of(1_000_000), lambda: apng_that_promises(10**9)],
    ids=["a million", "a promise"],
)
async def test_file_of_countless_frames_is_refused_at_little_cost(pool, bomb, frames):
    worker = await only_worker(pool)
    with pytest.raises(TooManyFrames, match=f"more than {MOST_IN_FILE:,} frames"):
        await read(pool, bomb(), frames)
    assert worker.alive()
    assert await works(pool)


async def test_frame_larger_than_its_gif_is_not_decoded(pool):
    data = animated("GIF", [0, 255])
    place = data.rindex(b"," + bytes(4)) + 5  # the last frame's width
    data = data[:place] + b"\xff\xff\xff\xff" + data[place + 4 :]
    async with opened(pool, data) as reader:
        await reader.next()
        with pytest.raises(UndecodableImage, match="disagree about its size"):
            await reader.next()


async def test_canvas_past_the_memory_limit_is_refused():
    data = gif_of(3, width=6_000, height=6_000)
    assert open_bytes(info_of(data), len(data)) > 2**28
    async with decoders(memory_bytes=2**27) as pool:
        (worker,) = pool._idle
        with pytest.raises((TooCostly, UndecodableImage)):
            await read(pool, data)
        assert worker.alive()
        assert await works(pool)


async def test_frames_are_charged_to_their_request():
    """Skipped frames are charged as well, and another file of the request has less left.

    The first frame takes 7 ms of processor time, all of them 600 ms: a busy machine needs more, and others less.
    """
    async with decoders(request_cpu_seconds=0.1) as pool:
        account = pool.account()
        async with opened(pool, animated("GIF", range(125), size=(600, 600)), account=account) as reader:
            await reader.next()
            with pytest.raises(TooCostly, match="request_cpu_seconds"):
                await rest(reader)
            (worker,) = pool._busy
        assert not worker.alive()
        with pytest.raises(TooCostly, match="request_cpu_seconds"):
            async with opened(pool, animated("GIF", range(3)), account=account):
                pass
        (worker,) = pool._idle
        assert worker.alive()
        assert await works(pool)


async def test_cancelled_frame_leaves_no_busy_process(pool):
    async with opened(pool, animated("GIF", range(3))) as reader:
        await reader.next()
        (worker,) = pool._busy
        os.kill(worker.pid, signal.SIGSTOP)
        step = asyncio.ensure_future(reader.next())
        await asyncio.sleep(0)
        step.cancel()
        await asyncio.wait([step])
        assert step.cancelled()
        assert not worker.alive()
    assert (pool._slots.bounds[0].free, pool.open_slots.bounds[0].free) == (1, 1)


@pytest.mark.parametrize("image_format", FORMATS)
async def test_file_that_waits_for_long_makes_room_and_goes_on(pool, monkeypatch, image_format):
    """Its request may wait for the rate of its API key, and another one's file needs the slot."""
    monkeypatch.setattr(open_files, "KEEP_SECONDS", 0.0)
    levels = tuple(range(0, 200, 20))
    async with opened(pool, animated(image_format, levels)) as reader:
        frames = [await reader.next(), await reader.next()]
        assert [index for index, *_ in await read(pool, animated("GIF", range(4)))] == [0, 1, 2, 3]
        assert not reader.is_open
        frames += await rest(reader)
    assert [index for index, *_ in frames] == list(range(10))
    assert [level_of(pixels) for *_, pixels in frames] == pytest.approx(levels, abs=6)
    assert [bound.free for bound in pool.open_slots.bounds] == [1, DECODE_LIMITS.memory_bytes]


async def test_waiting_animation_does_not_delay_images(pool):
    async with opened(pool, animated("GIF", range(3))) as reader:
        waiting = asyncio.ensure_future(read(pool, animated("GIF", range(4))))
        await asyncio.sleep(0)
        assert await works(pool)
        assert not waiting.done()
        await rest(reader)
    assert len(await waiting) == 4
