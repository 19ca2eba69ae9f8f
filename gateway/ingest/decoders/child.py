"""A decoder's process: `python -m gateway.ingest.decoders.child SOCKET MEMORY PARENT`.

A picture comes in a shared memory file, and its pixels go back in the same one; over the socket go lines of JSON: a
`worker.ImageJob` one way, a `worker.Reply` the other. A `worker.AnimationJob` opens an animation, which stays open for
as many lines as ask for its next frame. Whatever a picture makes of this process, its parent believes no more of it
than such a line, and measures what it takes by the clock of the process.
"""

import contextlib
import ctypes
import json
import mmap
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from gateway.errors import ImageError, TooCostly, UndecodableImage
from gateway.ingest.decoders.budget import Size
from gateway.ingest.decoding import Ppm, decode
from gateway.ingest.film import DecodedFrame, OpenedAnimation
from gateway.ingest.frames import Wanted
from gateway.ingest.image_info import ImageFormat, ImageInfo
from gateway.ingest.resizing import Resize

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38  # prctl(2)
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # mallopt(3)
KEPT_BYTES = 128 * 2**20
"""More than a photograph of 12 megapixels with what is made of it: malloc keeps it for the next one, whose pages need
no clearing then, which would take as long as decoding."""
MAX_OPEN_FILES = 64


def main() -> None:
    """Answer one job after the other until the parent closes the socket, or is gone."""
    channel, memory, parent = (int(argument) for argument in sys.argv[1:])
    _settle_in(parent)
    with socket.socket(fileno=channel) as connection, connection.makefile("rb") as lines:
        _say(connection, {"ready": True})
        decoder = _Decoder(memory)
        for line in lines:
            _say(connection, decoder.answer(json.loads(line)))


def _settle_in(parent: int) -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we asked to die with it
        sys.exit(1)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # No mappings at all: a threshold for them is capped at 32 MiB.
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    # Whoever stops the service signals all of its processes, and pictures in work are still wanted: the parent decides.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # Where memory runs out, the kernel ends this process first: it costs one image, and a model's process costs many.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (MAX_OPEN_FILES, MAX_OPEN_FILES))


def _say(connection: socket.socket, answer: dict[str, Any]) -> None:
    connection.sendall(json.dumps(answer).encode() + b"\n")


class _Decoder:
    """Does one job after the other, and keeps the film that is open."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._film: OpenedAnimation | None = None
        self._ceiling_bytes = 0

    def answer(self, job: dict[str, Any]) -> dict[str, Any]:
        """What a job comes to; a job that fails ends the film as well."""
        answer: dict[str, Any]
        try:
            if "film" in job:
                answer = self._open(job["film"], job["cpu_seconds"])
            elif "info" in job:
                answer = self._decode(job)
            else:
                answer = self._next(job["cpu_seconds"])
        except ImageError as error:
            answer = {"error": error.code, "message": error.message}
        except MemoryError:
            answer = {"error": TooCostly.code}
        except Exception as exc:
            answer = {"error": UndecodableImage.code, "cause": repr(exc)[:500]}
        if "error" in answer:
            self._film = None
        return answer

    def _decode(self, job: dict[str, Any]) -> dict[str, Any]:
        self._film = None
        with _limits(_address_space() + job["memory_bytes"], job["cpu_seconds"]):
            picture = decode(_input(self._memory, job["nbytes"]), _info(job["info"]), _size(job["size"]))
            return {"size": _output(self._memory, picture)}

    def _open(self, job: dict[str, Any], cpu_seconds: float) -> dict[str, Any]:
        self._film = None
        self._ceiling_bytes = _address_space() + job["memory_bytes"]
        with _limits(self._ceiling_bytes, cpu_seconds):
            # A copy: the frames go where the file came from.
            data = _input(self._memory, job["nbytes"]).tobytes()
            self._film = OpenedAnimation(data, _info(job["info"]), _size(job["size"]), Wanted(**job["wanted"]))
        return {"width": self._film.info.width, "height": self._film.info.height}

    def _next(self, cpu_seconds: float) -> dict[str, Any]:
        assert self._film is not None
        with _limits(self._ceiling_bytes, cpu_seconds):
            frame = self._film.step()
            if isinstance(frame, DecodedFrame):
                size = _output(self._memory, frame.picture)
                return {"size": size, "frame": frame.index, "shown_seconds": frame.seconds}
        if not frame:
            self._film = None
        return {"ends": not frame}


def _info(told: dict[str, Any]) -> ImageInfo:
    return ImageInfo(**{**told, "format": ImageFormat(told["format"])})


def _size(told: Any) -> Size:  # noqa: ANN401  # from JSON
    if isinstance(told, int):
        return told
    return Resize(tuple(told["size"]), told["interpolation"], told["fast"])


def _input(memory: int, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(mmap.mmap(memory, nbytes, prot=mmap.PROT_READ), dtype=np.uint8)


def _output(memory: int, picture: Ppm) -> int:
    position = 0
    for part in (picture.header, picture.pixels.data.cast("B")):
        while part:
            written = os.pwrite(memory, part, position)
            part, position = part[written:], position + written
    return position


@contextmanager
def _limits(ceiling_bytes: int, cpu_seconds: float) -> Iterator[None]:
    """Let this process grow to so much, and end it where it needs more processor time.

    SIGPROF ends a process in the midst of a decoder, to the millisecond, without anybody's help.
    """
    resource.setrlimit(resource.RLIMIT_AS, (ceiling_bytes, resource.RLIM_INFINITY))
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _address_space() -> int:
    with open("/proc/self/statm", "rb") as statm:  # noqa: PTH123 - twice as fast, and for every picture
        return int(statm.read().split()[0]) * mmap.PAGESIZE


if __name__ == "__main__":
    main()
