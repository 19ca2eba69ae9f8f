"""The parent's side of one decoder: start it, hand it a picture, take the pixels, end it."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

import gateway
from gateway.ingest.decoders.budget import Size
from gateway.ingest.decoders.cost import WORKER_START_SECONDS
from gateway.ingest.frames import Wanted
from gateway.ingest.image_info import ImageInfo

START_SECONDS = 30.0
_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TZ")
_KEPT_BYTES = 32 * 2**20
_MAX_LINE_BYTES, _MAX_HEADER_BYTES = 4_096, 64


class WorkerLost(Exception):
    """The process ended in the midst of a picture.

    `returncode` is subprocess' number; `reason` is "time" where its own timer ended it, "stuck" where the parent did,
    "crash" where nobody meant it to.
    """

    def __init__(self, returncode: int, reason: str) -> None:
        self.returncode = returncode
        self.reason = reason
        super().__init__(f"the decoder ended with {returncode}")


@dataclass(frozen=True, slots=True)
class ImageJob:
    """One picture and its limits."""

    info: ImageInfo
    nbytes: int
    size: Size
    memory_bytes: int
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class AnimationJob:
    """One animated file, the frames that are wanted of it, and the memory that it may take as long as it is open."""

    info: ImageInfo
    nbytes: int
    size: Size
    wanted: Wanted
    memory_bytes: int


class Reply(TypedDict):
    """What a child says of a picture: `size` in bytes, or an `error` by its code, with a public message and a cause.

    Of a film that was opened its `width` and `height`; then which `frame` it is, from when on it is shown, and whether
    the film `ends` without one.
    """

    size: int
    width: int
    height: int
    frame: int
    shown_seconds: float
    ends: bool
    error: str
    message: str
    cause: str


class Worker:
    """One child process with its own imports of the decoders; decodes one picture at a time.

    It dies with the thread that started it, so start it from the event loop's own. Nothing of the environment but what
    Python needs is handed down, and no file but its socket and the memory that both share.
    """

    def __init__(self, max_image_pixels: int) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(0)
        self._memory = os.memfd_create("picture")
        self._ready = self._interrupted = False
        self.start_seconds = WORKER_START_SECONDS
        """The processor time that its start took, measured once it is ready."""
        self._cpu_seconds = self._charged_seconds = 0.0
        with theirs:
            handles = (theirs.fileno(), self._memory)
            # No thread and no lock of this process gets into the child: it is a new program, not a fork.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "gateway.ingest.decoders.child", *map(str, handles), str(os.getpid())],
                env=_environment(max_image_pixels),
                pass_fds=handles,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    def charge_seconds(self) -> float:
        """The processor time that the process has taken since the last call; also of one that has ended."""
        self._read_clock()
        before, self._charged_seconds = self._charged_seconds, self._cpu_seconds
        return self._cpu_seconds - before

    def _read_clock(self) -> None:
        if self._process.returncode is None:  # its number is its own until it is waited for
            # clock_getcpuclockid(3): the complement of the number, and the kernel's CPUCLOCK_SCHED.
            self._cpu_seconds = time.clock_gettime(~self.pid << 3 | 2)

    async def decode(self, data: bytes, job: ImageJob) -> tuple[Reply, bytes]:
        """The child's answer, and the picture where there is one; raises WorkerLost where the process ends instead.

        Let it come to its end: `interrupt` the worker where that takes too long.
        """
        return await self._ask(data, asdict(job), job.info)

    async def open_film(self, data: bytes, job: AnimationJob, cpu_seconds: float) -> tuple[Reply, bytes]:
        """Open a film, in place of another one; as `decode`, but for the picture."""
        return await self._ask(data, {"film": asdict(job), "cpu_seconds": cpu_seconds}, job.info)

    async def next_frame(self, info: ImageInfo, cpu_seconds: float) -> tuple[Reply, bytes]:
        """Go on in the film; as `decode`, and without a picture where no frame came that is wanted."""
        return await self._ask(b"", {"cpu_seconds": cpu_seconds}, info)

    async def _ask(self, data: bytes, job: dict[str, Any], info: ImageInfo) -> tuple[Reply, bytes]:
        if not self._ready:
            await self._receive()
            self._ready = True
            self.start_seconds = self.charge_seconds()
        os.pwrite(self._memory, data, 0)
        with suppress(ConnectionError):  # then no answer comes either
            await asyncio.get_running_loop().sock_sendall(self._socket, json.dumps(job).encode() + b"\n")
        answer = _checked(await self._receive())
        # Never more than the picture has pixels, whatever has become of the child.
        size = min(answer["size"], 3 * info.width * info.height + _MAX_HEADER_BYTES)
        picture = os.pread(self._memory, size, 0)
        if max(size, len(data)) > _KEPT_BYTES:
            os.ftruncate(self._memory, 0)
        return answer, picture

    async def _receive(self) -> bytes:
        loop, line = asyncio.get_running_loop(), b""
        while not line.endswith(b"\n"):
            piece = b""
            with suppress(ConnectionError):
                piece = await loop.sock_recv(self._socket, _MAX_LINE_BYTES)
            if not piece or len(line) > _MAX_LINE_BYTES:
                code = self.close()
                reason = "time" if code == -signal.SIGPROF else "stuck" if self._interrupted else "crash"
                raise WorkerLost(code, reason)
            line += piece
        return line

    def interrupt(self) -> None:
        """End the process in the midst of its picture: `decode` raises WorkerLost once that has happened."""
        self._interrupted = True
        self._process.kill()

    def close(self) -> int:
        """End the process where it has not ended, and give back what was shared with it; its return code."""
        self._process.kill()
        if self._process.returncode is None:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            self._read_clock()
        code = self._process.wait()
        if self._memory >= 0:
            self._socket.close()
            os.close(self._memory)
            self._memory = -1
        return code


def _checked(line: bytes) -> Reply:
    """The answer, of which nothing is believed but its form."""
    said = json.loads(line)
    error, message, cause = (str(said.get(name, ""))[:500] for name in ("error", "message", "cause"))
    return Reply(
        size=int(said.get("size", 0)),
        width=int(said.get("width", 0)),
        height=int(said.get("height", 0)),
        frame=int(said.get("frame", 0)),
        shown_seconds=float(said.get("shown_seconds", 0.0)),
        ends=said.get("ends") is True,
        error=error,
        message=message,
        cause=cause,
    )


def _environment(max_image_pixels: int) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    kept |= {name: value for name, value in os.environ.items() if name.startswith("PYTHON")}
    folders = [str(Path(gateway.__file__).parents[1]), kept.get("PYTHONPATH", "")]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(filter(None, folders)),
        "OPENCV_IO_MAX_IMAGE_PIXELS": str(max_image_pixels),  # read once, when OpenCV is loaded
        # No threads of numpy's and OpenCV's linear algebra: one that starts when a picture's limit of memory is set
        # gets no memory, and then OpenBLAS calls a null pointer (blas_memory_alloc in its memory.c).
        "OPENBLAS_NUM_THREADS": "1",
    }
