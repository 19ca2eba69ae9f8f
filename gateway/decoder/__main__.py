"""A decoder's process: `python -m gateway.decoder SOCKET MEMORY PARENT`.

A file comes in a shared memory file, and its pixels return in the same one. Over the socket come pickled jobs (see
`gateway.ingest.decoder_process`), and replies return as lines of JSON: a hostile file may take over this process, so
its parent trusts only the form of the reply, and measures the processor time by the clock of the process.
"""

import contextlib
import ctypes
import json
import mmap
import os
import pickle
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.decoder.jobs import Made
from gateway.errors import ImageError, TooCostly, UndecodableImage

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38  # prctl(2)
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # mallopt(3)
KEPT_BYTES = 128 * 2**20
"""Memory that malloc keeps for the next image: more than a photograph of 12 megapixels and what is made of it. The
kernel would take as long to clear new pages as decoding takes."""
MAX_OPEN_FILES = 64


def main() -> None:
    """Answer one job after the other until the parent closes the socket, or is gone."""
    channel, memory, parent = (int(argument) for argument in sys.argv[1:])
    _restrict(parent)
    with socket.socket(fileno=channel) as connection, connection.makefile("rb") as jobs:
        _send(connection, {"ready": True})
        decoder = _Decoder(memory)
        with contextlib.suppress(EOFError):
            while True:
                _send(connection, decoder.answer(*pickle.load(jobs)))  # noqa: S301  # from the parent alone


def _restrict(parent: int) -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we asked to die with it
        sys.exit(1)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # No mappings at all: a threshold for them is capped at 32 MiB.
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    # A terminal signals all processes of the service at once, while images are still being decoded: the parent decides.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # Where memory runs out, the kernel ends this process first: it costs one image, and a model's process costs many.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (MAX_OPEN_FILES, MAX_OPEN_FILES))


def _send(connection: socket.socket, reply: dict[str, Any]) -> None:
    connection.sendall(json.dumps(reply).encode() + b"\n")


class _Decoder:
    """Does one job after the other, and keeps the file that is open."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._opened: Iterator[Made] | None = None
        self._ceiling_bytes = 0

    def answer(
        self, function: str, arguments: dict[str, Any], nbytes: int, memory_bytes: int, cpu_seconds: float
    ) -> dict[str, Any]:
        """The reply to a job; one that fails closes the open file as well."""
        try:
            if function:
                self._opened = None
                work = resolve_name(function)  # an import must not be short of memory
                self._ceiling_bytes = _address_space() + memory_bytes
            with _limits(self._ceiling_bytes, cpu_seconds):
                reply = self._next() if not function else self._begin(work(self._input(nbytes), **arguments))
        except ImageError as error:
            reply = {"error": error.code, "message": error.message}
        except MemoryError:
            reply = {"error": TooCostly.code}
        except Exception as exc:
            reply = {"error": UndecodableImage.code, "cause": repr(exc)[:500]}
        if "error" in reply:
            self._opened = None
        return reply | {"open": self._opened is not None}

    def _begin(self, result: Made | Iterator[Made]) -> dict[str, Any]:
        """The reply for the result of a function; an iterator stays open."""
        if isinstance(result, Made):
            return self._output(result)
        self._opened = result
        return {}

    def _next(self) -> dict[str, Any]:
        """The reply for the next result of the open file."""
        assert self._opened is not None
        result = next(self._opened)
        if result.is_last:
            self._opened = None
        return self._output(result)

    def _input(self, nbytes: int) -> NDArray[np.uint8]:
        return np.frombuffer(mmap.mmap(self._memory, nbytes, prot=mmap.PROT_READ), np.uint8)

    def _output(self, result: Made) -> dict[str, Any]:
        position = 0
        for part in result.parts:
            while part:
                written = os.pwrite(self._memory, part, position)
                part, position = part[written:], position + written
        return {**result.fields, "size": position}


@contextmanager
def _limits(ceiling_bytes: int, cpu_seconds: float) -> Iterator[None]:
    """Limit the address space of this process, and end it where it needs more processor time.

    SIGPROF ends a process inside C code, to the millisecond, without the parent's help.
    """
    resource.setrlimit(resource.RLIMIT_AS, (ceiling_bytes, resource.RLIM_INFINITY))
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _address_space() -> int:
    with open("/proc/self/statm", "rb") as statm:  # noqa: PTH123 - twice as fast, and for every image
        return int(statm.read().split()[0]) * mmap.PAGESIZE


if __name__ == "__main__":
    main()
