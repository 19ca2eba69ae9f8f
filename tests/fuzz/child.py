"""The child process for damaged files, which answers each with its outcome and cost.

It does the gateway's steps and, for images that are passed on, the preprocessor's. Faults are: another
outcome than an ImageError or an image of the size in its header; more processor time or memory than bytes and pixels
account for; the end of the process.
"""

import contextlib
import resource
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.decoder.decoding import decode
from gateway.decoder.headers import read_header
from gateway.decoder.opencv import cv2
from gateway.errors import ImageError
from gateway.ingest.image_formats import Header, ImageFormat, memory_limit, open_bytes
from gateway.ingest.inspection import DecodePolicy, check_size, encoded, examine, needs_decoding
from gateway.ingest.upload import Limits, Upload
from gateway.settings import DecodeMode

LIMITS = Limits(
    max_files=1_000,
    max_file_bytes=20 * 2**20,
    max_request_bytes=2 * 2**30,
    max_image_pixels=1_000_000,
)
MEMORY_BYTES = 2**30
POLICY = DecodePolicy(mode=DecodeMode.AUTO, above_pixels=4_000_000, max_side=256, limits=LIMITS)


@dataclass(frozen=True)
class Cost:
    """Limits of a step: a constant, and a share for each byte and for each pixel of the header."""

    seconds: float
    seconds_per_byte: float
    seconds_per_pixel: float
    memory_bytes: int
    memory_per_pixel: int

    def check(self, step: str, nbytes: int, pixels: int, spent: "Meter") -> None:
        """Raise TooMuch where a step took more."""
        seconds = self.seconds + self.seconds_per_byte * nbytes + self.seconds_per_pixel * pixels
        memory = self.memory_bytes + 4 * nbytes + self.memory_per_pixel * pixels
        if spent.seconds > seconds or spent.memory_bytes > memory:
            raise TooMuch(
                f"{step} took {spent.seconds:.3f} s of processor time and {spent.memory_bytes >> 20} MiB for {nbytes} "
                f"bytes and {pixels} pixels; {seconds:.3f} s and {memory >> 20} MiB are allowed"
            )


INSPECTING = Cost(0.05, 20e-9, 0, 4 * 2**20, 0)
"""In the event loop, for an image of any size."""
PASSED_ON = Cost(0.1, 100e-9, 300e-9, 32 * 2**20, 24)
"""In the preprocessor, where nothing bounds it."""
ISOLATED = Cost(0.6, 100e-9, 400e-9, 128 * 2**20, 48)
"""Limits of this process, higher than the limits of a decoder process."""


class TooMuch(Exception):
    pass


class Meter:
    """Processor time and growth of memory in a block."""

    seconds = 0.0
    memory_bytes = 0

    def __enter__(self) -> "Meter":
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak: proc(5)
        self._before = resident_bytes()
        self._started = time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.process_time() - self._started
        self.memory_bytes = most_resident_bytes() - self._before


def answer(data: bytes) -> str:
    """The code of the error, or "ok"; raises on any fault."""
    upload = Upload(index=0, filename="", data=data)
    with Meter() as meter:
        info: Header | ImageFormat | str = _examined(upload)
    INSPECTING.check("inspecting", len(data), 0, meter)
    if isinstance(info, ImageFormat):
        with Meter() as meter:
            info = _header_of(data, info)
        ISOLATED.check("reading a header", len(data), 0, meter)
    if isinstance(info, str):
        return info
    pixels = info.width * info.height
    payload = encoded(upload, info)
    with Meter() as meter:
        outcome = _decoded(payload, info, min(memory_limit(info, len(data)), MEMORY_BYTES))
    ISOLATED.check("decoding", len(data), pixels, meter)
    if needs_decoding(info, POLICY):
        return outcome
    with Meter() as meter:
        seen = _seen(payload)
    PASSED_ON.check("decoding what passes", len(data), pixels, meter)
    if seen is None:
        return f"passed on, undecodable_image there, {outcome} here"
    assert seen.shape == (info.height, info.width, 3), f"promised {info}, decoded {seen.shape}"
    return f"ok passed on, {outcome} here"


@contextlib.contextmanager
def _limited(memory_bytes: int) -> Iterator[None]:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + memory_bytes, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _examined(upload: Upload) -> Header | ImageFormat | str:
    """The facts from the header, or the code of the error."""
    try:
        return examine(upload, POLICY)
    except ImageError as error:
        return error.code


def _header_of(data: bytes, image_format: ImageFormat) -> Header | str:
    info = Header(image_format, 0, 0)
    try:
        with _limited(open_bytes(info, len(data))):
            info = read_header(data, image_format)
        check_size(info, LIMITS)
    except ImageError as error:
        return error.code
    except MemoryError:
        return "too_costly"
    return info


def _decoded(payload: bytes, info: Header, memory_bytes: int) -> str:
    try:
        with _limited(memory_bytes):
            _check_ppm(decode(payload, info, POLICY.max_side).to_bytes())
    except ImageError as error:
        return error.code
    except MemoryError:
        return "too_costly"
    return "ok"


def _seen(payload: bytes) -> NDArray[np.uint8] | None:
    try:
        pixels: Any = cv2.imdecode(np.frombuffer(payload, np.uint8), cv2.IMREAD_COLOR_RGB)
    except cv2.error:
        return None
    return pixels


def _check_ppm(payload: bytes) -> None:
    magic, size, depth, pixels = payload.split(b"\n", 3)
    width, height = map(int, size.split())
    assert (magic, depth, len(pixels)) == (b"P6", b"255", width * height * 3)


def most_resident_bytes() -> int:
    """The peak of the process's resident memory since it was reset."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def serve(pipe: Connection) -> None:
    """Answer each file until the other end is closed."""
    with contextlib.suppress(EOFError):
        while True:
            data = pipe.recv_bytes()
            started, fault = time.process_time(), None
            try:
                outcome = answer(data)
            except Exception:
                outcome, fault = "fault", traceback.format_exc()
            seconds = time.process_time() - started
            pipe.send({"outcome": outcome, "fault": fault, "seconds": seconds, "resident_bytes": resident_bytes()})
