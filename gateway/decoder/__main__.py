"""A decoder's process: `python -m gateway.decoder SOCKET MEMORY PARENT`.

A file comes in a shared memory file, and its pixels return in the same one. Lines of JSON go over the socket: a job of
`gateway.ingest.decoders.worker` one way, its `Reply` the other. The plug-in media has more jobs: an `AnimationJob`
opens an animation, and a `FrameJob` returns its next frame; a `MaskJob` makes a masked copy of a decoded image, or it
draws a map. A hostile file may take over this process. So its parent trusts only the form of the reply, and measures
the processor time by the clock of the process.
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

from gateway.decoder.damage import DamageDetector
from gateway.decoder.decoding import Ppm, decode
from gateway.decoder.frames import OpenedAnimation
from gateway.decoder.headers import read_header
from gateway.decoder.masking import masked_copy, overlay_of, read_ppm
from gateway.decoder.tensors import to_tensor
from gateway.errors import ImageError, TooCostly, UndecodableImage
from gateway.ingest.frames import FrameSelection
from gateway.ingest.image_formats import Header, ImageFormat, Size
from gateway.ingest.resizing import Resize, TensorInput

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
    with socket.socket(fileno=channel) as connection, connection.makefile("rb") as lines:
        _send(connection, {"ready": True})
        decoder = _Decoder(memory)
        for line in lines:
            _send(connection, decoder.answer(json.loads(line)))


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
    """Does one job after the other, and keeps the animation that is open."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._animation: OpenedAnimation | None = None
        self._size: Size = 0
        """Size of the frames of the open animation."""
        self._damage = DamageDetector()
        self._ceiling_bytes = 0

    def answer(self, job: dict[str, Any]) -> dict[str, Any]:
        """The reply to a job; a job that fails closes the animation as well."""
        reply: dict[str, Any]
        try:
            if job["kind"] != "frame":  # it is for the file that is open
                self._animation = None
                self._ceiling_bytes = _address_space() + job["memory_bytes"]
            with _limits(self._ceiling_bytes, job["cpu_seconds"]):
                reply = self._JOBS[job["kind"]](self, job)
        except ImageError as error:
            reply = {"error": error.code, "message": error.message}
        except MemoryError:
            reply = {"error": TooCostly.code}
        except Exception as exc:
            reply = {"error": UndecodableImage.code, "cause": repr(exc)[:500]}
        if "error" in reply or reply.get("ends"):
            self._animation = None
        return reply

    def _read_header(self, job: dict[str, Any]) -> dict[str, Any]:
        info = read_header(_input(self._memory, job["nbytes"]).tobytes(), ImageFormat(job["image_format"]))
        # What else the header says is read again with the pixels.
        return {name: getattr(info, name) for name in ("width", "height", "bit_depth", "has_alpha", "animated")}

    def _decode(self, job: dict[str, Any]) -> dict[str, Any]:
        size = _size(job["size"])
        with self._damage:
            ppm = decode(_input(self._memory, job["nbytes"]), _info(job["info"]), size)
        return {"size": _output(self._memory, *_image(ppm, size)), "damaged": self._damage.damaged}

    def _open(self, job: dict[str, Any]) -> dict[str, Any]:
        # A copy: the frames overwrite the file's memory.
        data = _input(self._memory, job["nbytes"]).tobytes()
        self._size = _size(job["size"])
        self._animation = OpenedAnimation(
            data, _info(job["info"]), self._size, FrameSelection(**job["wanted"]), job["first"]
        )
        return {}

    def _mask(self, job: dict[str, Any]) -> dict[str, Any]:
        options = job["options"]
        # A copy: the result overwrites the image's memory.
        pixels = read_ppm(_input(self._memory, job["nbytes"]).tobytes())
        copy, visible = masked_copy(pixels, options["number"])
        return {"size": _output(self._memory, *_image(copy, _size(options["size"])), visible.data.cast("B"))}

    def _draw(self, job: dict[str, Any]) -> dict[str, Any]:
        side, width, height = (job["options"][name] for name in ("side", "width", "height"))
        values = np.frombuffer(_input(self._memory, job["nbytes"]).tobytes(), np.float32).reshape(side, side)
        return {"size": _output(self._memory, overlay_of(values, height, width))}

    def _next(self, _: dict[str, Any]) -> dict[str, Any]:
        assert self._animation is not None
        frame = self._animation.step()
        if frame is None:
            return {}
        size = _output(self._memory, *_image(frame.image, self._size))
        return {"size": size, "frame": frame.index, "shown_seconds": frame.seconds, "ends": frame.is_last}

    _JOBS = {  # noqa: RUF012
        "header": _read_header,
        "image": _decode,
        "animation": _open,
        "frame": _next,
        "mask": _mask,
        "heat map": _draw,
    }


def _info(fields: dict[str, Any]) -> Header:
    return Header(**{**fields, "format": ImageFormat(fields["format"])})


def _size(value: Any) -> Size:  # noqa: ANN401  # from JSON
    if isinstance(value, int):
        return value
    if "resize" in value:
        return TensorInput(**{**value, "resize": _size(value["resize"]), "crop": tuple(value["crop"])})
    return Resize(tuple(value["size"]), value["interpolation"], value["fast"])


def _input(memory: int, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(mmap.mmap(memory, nbytes, prot=mmap.PROT_READ), dtype=np.uint8)


def _image(ppm: Ppm, size: Size) -> tuple[bytes | memoryview, ...]:
    """The parts of an image as its model wants it."""
    if isinstance(size, TensorInput):
        return (to_tensor(ppm.pixels, size).data.cast("B"),)
    return ppm.header, ppm.pixels.data.cast("B")


def _output(memory: int, *parts: bytes | memoryview) -> int:
    position = 0
    for part in parts:
        while part:
            written = os.pwrite(memory, part, position)
            part, position = part[written:], position + written
    return position


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
