"""The parent's side of one decoder: starts the process, sends files, receives pixels, ends it."""

import asyncio
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import NonNegativeInt, TypeAdapter, ValidationError

import gateway
from gateway.ingest.image_formats import DECODER_START_SECONDS, Header, Size
from gateway.ingest.resizing import TensorInput
from gateway.machine.child_environment import child_environment

START_SECONDS = 30.0
_KEPT_BYTES = 32 * 2**20
_REASONS = {-signal.SIGPROF: "time", -signal.SIGKILL: "killed"}
_MAX_LINE_BYTES, _MAX_HEADER_BYTES = 4_096, 64
_ENDING_SECONDS, _LOOK_SECONDS = 0.5, 0.005
"""How long a process whose socket is closed may take to end by itself, and the interval of checks."""


class DecoderLost(Exception):
    """The process ended during a job.

    `returncode` is as in subprocess; `reason` is "time" if its own timer ended it, "stuck" if the parent did,
    "killed" if the kernel did, as it does where memory runs out, else "crash".
    """

    def __init__(self, returncode: int, reason: str) -> None:
        self.returncode = returncode
        self.reason = reason
        super().__init__(f"the decoder ended with {returncode}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a decoder's process does with a file."""

    function: str
    """Its module and name, as in `gateway.decoder.jobs:decode`; "" takes the next result of the iterator that the last
    job returned. It gets the bytes of the file and the `arguments`, which are pickled."""
    arguments: Mapping[str, object] = field(default_factory=dict)
    memory_bytes: int = 0
    """Address space that may be added to the process; for as long as its iterator is open, too."""
    most_result_bytes: int = 0


def most_pixel_bytes(info: Header, size: Size) -> int:
    """Bytes of the largest result of a decoded image."""
    if isinstance(size, TensorInput):
        return size.nbytes
    return 3 * info.width * info.height + _MAX_HEADER_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The reply to a job: its result, or an `error` by its code, with a public message and a cause.

    Of `read_header` the fields of a Header; of `decode` the `size` of the pixels in bytes, and whether the data was
    `damaged`. The others are of frames: see gateway.plugins.media.open_files.
    """

    width: NonNegativeInt = 0
    height: NonNegativeInt = 0
    orientation: NonNegativeInt = 1
    bit_depth: NonNegativeInt = 0
    has_alpha: bool = False
    animated: bool = False
    damaged: bool = False
    size: NonNegativeInt = 0
    frame: NonNegativeInt = 0
    shown_seconds: float = 0.0
    open: bool = False
    """Whether the process keeps the file open, for its next result."""
    error: str = ""
    message: str = ""
    cause: str = ""


_REPLY = TypeAdapter(Reply)


class DecoderProcess:
    """One child process, `gateway.decoder`, which does one job at a time.

    It ends with the thread that started it, so start it on the event loop's thread. The process gets only the
    environment variables that Python needs, and no files but its socket and the shared memory.
    """

    def __init__(self, max_image_pixels: int) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(0)
        self._memory = os.memfd_create("image")
        self._ready = self._interrupted = False
        self.idle = True
        """Whether the process does no job and keeps no file open; otherwise it cannot be used for another file."""
        self.start_seconds = DECODER_START_SECONDS
        """The processor time of its start, measured once it is ready."""
        self._cpu_seconds = self._charged_seconds = 0.0
        with theirs:
            handles = (theirs.fileno(), self._memory)
            try:
                # A new program, not a fork: the child inherits no threads and no locks.
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "gateway.decoder", *map(str, handles), str(os.getpid())],
                    env=_environment(max_image_pixels),
                    pass_fds=handles,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except BaseException:
                self._socket.close()
                os.close(self._memory)
                raise

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether the process runs."""
        self._read_clock()
        return self._process.poll() is None

    def charge_seconds(self) -> float:
        """The processor time that the process has taken since the last call; also of one that has ended."""
        self._read_clock()
        before, self._charged_seconds = self._charged_seconds, self._cpu_seconds
        return self._cpu_seconds - before

    def _read_clock(self) -> None:
        if self._process.returncode is None:  # until it is waited for, no other process can have its id
            # clock_getcpuclockid(3): the complement of the process id, and the kernel's CPUCLOCK_SCHED.
            self._cpu_seconds = time.clock_gettime(~self.pid << 3 | 2)

    async def do(self, job: Job, data: bytes, cpu_seconds: float) -> tuple[Reply, bytes]:
        """Run a job on `data`; returns the reply, and the pixels if there are any.

        Raises DecoderLost if the process ends. Do not cancel it: `interrupt` the process if it takes too long.
        """
        self.idle = False
        if not self._ready:
            await self._receive()
            self._ready = True
            self.start_seconds = self.charge_seconds()
        os.pwrite(self._memory, data, 0)
        # The process trusts its parent, and never the other way round: its reply is JSON.
        message = pickle.dumps((job.function, job.arguments, len(data), job.memory_bytes, cpu_seconds))
        with suppress(ConnectionError):  # then no reply comes either
            await asyncio.get_running_loop().sock_sendall(self._socket, message)
        try:
            reply = _REPLY.validate_json(await self._receive(), strict=True)
        except ValidationError as exc:
            raise DecoderLost(self.close(), "crash") from exc
        self.idle = not reply.open
        # Never more than the job can make, even if the child was taken over.
        size = min(reply.size, job.most_result_bytes)
        pixels = os.pread(self._memory, size, 0)
        if max(size, len(data)) > _KEPT_BYTES:
            os.ftruncate(self._memory, 0)
        return reply, pixels

    async def _receive(self) -> bytes:
        loop, line = asyncio.get_running_loop(), b""
        while not line.endswith(b"\n"):
            piece = b""
            with suppress(ConnectionError):
                piece = await loop.sock_recv(self._socket, _MAX_LINE_BYTES)
            if not piece or len(line) > _MAX_LINE_BYTES:
                by_itself = not piece and await self._has_ended()
                code = self.close()
                reason = _REASONS.get(code, "crash") if by_itself else "crash"
                raise DecoderLost(code, "stuck" if self._interrupted else reason)
            line += piece
        return line

    async def _has_ended(self) -> bool:
        """Whether the process, whose socket is closed, ends without being killed here."""
        deadline = time.monotonic() + _ENDING_SECONDS
        # It does not block, and leaves the process to be waited for: its clock is still to be read.
        while os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:  # noqa: ASYNC222
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_LOOK_SECONDS)
        return True

    def interrupt(self) -> None:
        """End the process during its job: `do` then raises DecoderLost."""
        self._interrupted = True
        self._kill()

    def _kill(self) -> None:
        # Popen.kill would wait for a process that has ended, and its clock could no longer be read.
        if self._process.returncode is None:
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> int:
        """End the process and release the shared memory; returns its return code."""
        if self._process.returncode is None:
            self._kill()
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            self._read_clock()
        code = self._process.wait()
        if self._memory >= 0:
            self._socket.close()
            os.close(self._memory)
            self._memory = -1
        return code


def _environment(max_image_pixels: int) -> dict[str, str]:
    kept = child_environment()
    folders = [str(Path(gateway.__file__).parents[1]), kept.get("PYTHONPATH", "")]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(filter(None, folders)),
        "OPENCV_IO_MAX_IMAGE_PIXELS": str(max_image_pixels),  # read once, when OpenCV is loaded
        # No threads for numpy's and OpenCV's linear algebra: a thread that starts after an image's memory limit is set
        # gets no memory, and then OpenBLAS calls a null pointer (blas_memory_alloc in its memory.c).
        "OPENBLAS_NUM_THREADS": "1",
    }
