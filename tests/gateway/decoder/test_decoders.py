"""Decoding in child processes: limits of an image, crashes, cancellation and accounting."""

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from PIL import Image

from gateway.errors import Overloaded, TooCostly, UndecodableImage
from gateway.ingest import decoder_pool as pool_module
from gateway.ingest.decoder_process import DecoderLost, DecoderProcess
from gateway.ingest.image_formats import peak_bytes
from gateway.plugins.media.frame_selection import FrameSelection
from gateway.plugins.media.open_files import OpenFile
from tests.encoders import png_bomb
from tests.gateway.decoder.pools import MAX_SIDE, cat, decoded, decoded_here, decoders, info_of, works
from tests.processes import PROJECT, is_gone
from tests.samples import encode, photograph, samples

DOT = encode(photograph().resize((1, 1)), "BMP")


@pytest.fixture(scope="module")
async def shared_pool():
    async with decoders() as pool:
        yield pool


@pytest.fixture
async def pool(shared_pool):
    """A pool with one idle process, which the test may end; all tests share the pool, since processes start slowly."""
    assert (await decoded(shared_pool, DOT)).startswith(b"P6")
    return shared_pool


def children():
    """The child processes that were not waited for yet."""
    return set(psutil.Process().children())


def cpu_seconds_of_children():
    """Processor time of children that have ended and been waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


async def hold(pool):
    """Stop the pool's only process, so that an image stays in work until SIGCONT."""
    (worker,) = pool._idle
    await decoded(pool, cat())
    os.kill(worker.pid, signal.SIGSTOP)
    # Until then it may still take an image.
    async with asyncio.timeout(60):
        while psutil.Process(worker.pid).status() != psutil.STATUS_STOPPED:  # noqa: ASYNC110 - it cannot tell any more
            await asyncio.sleep(0.001)
    return worker


async def begun(pool):
    while not pool._busy:  # noqa: ASYNC110 - the pool tells nobody
        await asyncio.sleep(0)


async def unanswered(pool, account=None):
    """An image in work, and its process, which stands still."""
    worker = await hold(pool)
    task = asyncio.ensure_future(decoded(pool, cat(), account))
    await begun(pool)
    return worker, task


def slow_picture():
    """Some tens of milliseconds of processor time, in few bytes."""
    return png_bomb(4_000, 4_000)


async def test_every_form_is_decoded_as_in_process():
    async with decoders(2) as pool:
        account = pool.account()
        chosen = samples(67, 45)
        pictures = await asyncio.gather(*(decoded(pool, one.data, account) for one in chosen))
    for one, picture in zip(chosen, pictures, strict=True):
        assert picture == decoded_here(one.data), one.name


async def test_image_past_its_cpu_limit_ends_its_process_and_fails_alone():
    async with decoders(cpu_seconds=0.05) as pool:
        (first,) = pool._idle
        costly, other = await asyncio.gather(decoded(pool, slow_picture()), decoded(pool, DOT), return_exceptions=True)
        assert isinstance(costly, TooCostly)
        assert isinstance(other, bytes)
        assert other.startswith(b"P6")
        assert first._process.returncode == -signal.SIGPROF


@pytest.mark.slow
async def test_large_transparent_tiff_fits_into_its_memory():
    data = encode(Image.new("RGBA", (7_000, 7_000), (10, 20, 30, 100)), "TIFF", compression="tiff_adobe_deflate")
    async with decoders() as pool:
        assert (await decoded(pool, data)).startswith(b"P6")


async def test_image_past_its_memory_limit_is_refused():
    data = encode(photograph().resize((3_000, 2_000)), "PNG", compress_level=1)
    async with decoders(memory_bytes=4 * 2**20) as pool:
        (worker,) = pool._idle
        with pytest.raises((TooCostly, UndecodableImage)):
            await decoded(pool, data)
        assert await works(pool)
        assert pool._idle == [worker]


@pytest.mark.parametrize(
    ("ending", "error", "reason"),
    [
        (signal.SIGSEGV, UndecodableImage, None),
        (signal.SIGKILL, Overloaded, "was killed, as for lack of memory"),
    ],
    ids=["crash", "killed"],
)
async def test_end_of_a_process_fails_only_its_image_and_is_charged(pool, ending, error, reason):
    """Where memory runs out, the kernel kills a decoder first: its image need not be bad."""
    account = pool.account()
    worker, broken = await unanswered(pool, account)
    waiting = asyncio.ensure_future(decoded(pool, cat()))
    await asyncio.sleep(0)
    os.kill(worker.pid, ending)
    os.kill(worker.pid, signal.SIGCONT)
    with pytest.raises(error, match=reason):
        await broken
    assert (await waiting).startswith(b"P6")
    assert account.spent_seconds >= worker.start_seconds > 0.02


async def test_killed_idle_decoder_is_replaced(pool):
    (idle,) = pool._idle
    os.kill(idle.pid, signal.SIGKILL)
    idle._process.wait(30)
    async with pool._any_process(pool.account()) as worker:
        assert worker is not idle
        assert worker.alive()


async def test_cancelled_decode_ends_with_its_cancellation(pool):
    worker, task = await unanswered(pool)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert worker._process.returncode == -signal.SIGKILL
    assert await works(pool)


async def test_almost_finished_cancelled_decode_keeps_its_process(pool, monkeypatch):
    monkeypatch.setattr(pool_module, "LET_FINISH_SECONDS", 60)
    (worker,) = pool._idle
    data = cat()
    await decoded(pool, data)
    for _ in range(20):
        task = asyncio.ensure_future(decoded(pool, data))
        await begun(pool)
        task.cancel()
        await asyncio.wait([task])
    # Each answer was taken, so the next image gets its own and not the one before.
    assert await decoded(pool, data) == decoded_here(data)
    assert pool._idle == [worker]


async def test_requests_take_turns_at_the_decoders(pool):
    worker = await hold(pool)
    data, done = cat(), []

    async def one(name, account):
        await decoded(pool, data, account)
        done.append(name)

    bulk, single = pool.account(), pool.account()
    tasks = [asyncio.ensure_future(one("bulk", bulk)) for _ in range(5)]
    await begun(pool)
    tasks.append(asyncio.ensure_future(one("single", single)))
    await asyncio.sleep(0)
    os.kill(worker.pid, signal.SIGCONT)
    await asyncio.gather(*tasks)
    assert done.index("single") <= 2


async def test_images_that_fit_into_memory_are_decoded_concurrently():
    data = cat()
    nbytes = peak_bytes(info_of(data), MAX_SIDE)
    for room, together in ((2 * nbytes, 2), (2 * nbytes - 1, 1), (nbytes - 1, 1)):
        async with decoders(2, memory_bytes=room) as pool:
            pool._any_process = standing_still
            tasks = [asyncio.ensure_future(decoded(pool, data)) for _ in range(3)]
            for _ in range(5):
                await asyncio.sleep(0)
            assert 2 - pool._slots.bounds[0].free == together
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert (pool._slots.bounds[0].free, pool._slots.bounds[1].free) == (2, room)


@contextlib.asynccontextmanager
async def standing_still(account):
    await asyncio.Event().wait()
    yield


def test_decoder_that_cannot_be_started_keeps_no_files(monkeypatch):
    """As without a free process: each attempt would keep a file of shared memory and a socket."""

    def refuse(*arguments, **options):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    before = len(list(Path("/proc/self/fd").iterdir()))
    with monkeypatch.context() as changed:
        changed.setattr(subprocess, "Popen", refuse)
        for _ in range(10):
            with pytest.raises(BlockingIOError):
                DecoderProcess(1_000_000)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


async def test_decoder_ends_with_its_parent_amid_an_image():
    script = """
import asyncio, os, signal
from tests.gateway.decoder.test_decoders import decoders, unanswered

async def main():
    async with decoders() as pool:
        worker, task = await unanswered(pool)
        print(worker.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, cwd=PROJECT
    )
    out, _ = await process.communicate()
    async with asyncio.timeout(60):
        while psutil.pid_exists(int(out)) and not is_gone(psutil.Process(int(out))):  # noqa: ASYNC110 - another's child
            await asyncio.sleep(0.01)


async def test_opencv_refuses_images_past_the_pixel_limit():
    async with decoders(image_pixels=451 * 300 - 1) as pool:
        with pytest.raises(UndecodableImage):
            await decoded(pool, cat())


async def test_decoder_has_one_thread_and_no_secrets(monkeypatch):
    """A second thread could start under an image's memory limit, and crash."""
    monkeypatch.setenv("GATEWAY_SECRET", "a secret")
    async with decoders() as pool:
        (worker,) = pool._idle
        await decoded(pool, cat())
        assert psutil.Process(worker.pid).num_threads() == 1
        assert "GATEWAY_SECRET" not in psutil.Process(worker.pid).environ()


async def test_request_beyond_its_account_gets_no_process():
    """A file that crosses the limit is answered, and the next one is not begun; another request has another account."""
    async with decoders(request_cpu_seconds=0.02) as pool:
        account = pool.account()
        bomb = slow_picture()
        assert (await decoded(pool, bomb, account)).startswith(b"P6")
        spent = account.spent_seconds
        with pytest.raises(TooCostly, match="request_cpu_seconds"):
            await decoded(pool, cat(), account)
        assert account.spent_seconds == spent
        assert await works(pool)


async def test_charges_equal_the_cpu_time_of_the_processes():
    """Including the end of a process, and the start of another one."""
    before = cpu_seconds_of_children()
    async with decoders(cpu_seconds=0.15) as pool:
        account = pool.account()
        bomb = png_bomb(7_000, 7_000)
        for _ in range(3):
            with pytest.raises(TooCostly):
                await decoded(pool, bomb, account)
            # All that the lost processes have taken: each start counts instead of the start of its replacement. The
            # amount depends on the machine: on a busy one, wall clock time ends a process before its processor time.
            assert account.spent_seconds == pytest.approx(cpu_seconds_of_children() - before, abs=0.01)
        spent = account.spent_seconds
        await decoded(pool, cat(), account)
        assert account.spent_seconds > spent
    assert account.spent_seconds <= cpu_seconds_of_children() - before


async def test_processes_of_animations_are_reused_and_end_with_their_pool():
    """Starting one takes longer than decoding most images."""
    gif = encode(photograph(), "GIF")
    before = children()
    async with decoders() as pool:
        started = set()
        for _ in range(5):
            async with OpenFile(pool, gif, info_of(gif), MAX_SIDE, pool.account(), FrameSelection(10)) as opened_file:
                await decoded(pool, cat())
                while opened_file.has_next:
                    await opened_file.next()
            started |= children() - before
        assert len(started) == 2
    assert children() == before


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("s.sendall(b'x' * 9000 + b'\\n'); time.sleep(60)", "crash"),
        ("s.shutdown(socket.SHUT_RDWR); time.sleep(60)", "crash"),
        ("s.close(); time.sleep(0.1); raise SystemExit(1)", "crash"),
        ("s.close(); time.sleep(0.1); os.kill(os.getpid(), signal.SIGKILL)", "killed"),
    ],
    ids=["too-long-a-reply", "closed-socket", "exception", "out-of-memory"],
)
async def test_reason_of_a_lost_decoder(monkeypatch, program, reason):
    """A process that is ended here, since it no longer answers, was not killed for lack of memory."""

    def start(command, **options):
        code = f"import os, signal, socket, sys, time; s = socket.socket(fileno=int(sys.argv[1])); {program}"
        return popen([sys.executable, "-c", code, command[4]], **options)

    popen = subprocess.Popen
    monkeypatch.setattr("gateway.ingest.decoder_process.subprocess.Popen", start)
    worker = DecoderProcess(1_000_000)
    with pytest.raises(DecoderLost) as lost:
        await worker._receive()
    assert lost.value.reason == reason
