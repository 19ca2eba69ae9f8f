"""The child process that takes the damaged files: reads lengths and bytes, answers each with a line of JSON.

It does what the gateway and, for bytes that pass through, the preprocessor do; an answer other than an ImageError or a
picture of the promised size is a fault, and so is an uncommon use of time or memory. The process must live on in any
case.
"""

import io
import json
import resource
import struct
import sys
import time
import traceback
from pathlib import Path

import numpy as np

from gateway.errors import ImageError
from gateway.ingest.decoding import decode
from gateway.ingest.in_process import prepare
from gateway.ingest.opencv import cv2
from gateway.ingest.prepare import DecodePolicy, examine, needs_decoding
from gateway.ingest.upload import Upload
from gateway.ingest.upload_limits import Limits
from gateway.settings import DecodeMode

LIMITS = Limits(
    max_files=1_000,
    max_file_bytes=20 * 2**20,
    max_request_bytes=2 * 2**30,
    max_image_pixels=1_000_000,
    max_image_side=16_384,
    max_header_bytes=65_536,
    max_part_header_bytes=16_384,
)
POLICY = DecodePolicy(mode=DecodeMode.AUTO, above_pixels=4_000_000, max_side=256, limits=LIMITS)
MOST_SECONDS = 2.0
"""Of processor time, for the three decodes of one file of at most a million pixels."""
MOST_MEMORY_BYTES = 150 * 2**20
"""That the process may grow by at any time: a million pixels need eleven bytes each."""


def answer(data: bytes) -> str:
    """The code of the error, or "ok"; raises on any fault."""
    upload = Upload(index=0, filename="", data=data)
    try:
        info = examine(upload, POLICY)
        image = prepare(upload, POLICY)
    except ImageError as error:
        return error.code
    if needs_decoding(info, POLICY):
        _check_ppm(image.payload)
        return "ok decoded here"
    data = image.payload
    try:
        _check_ppm(decode(data, info, POLICY.max_side).to_bytes())
    except ImageError as error:
        return f"passed on, {error.code}"
    try:
        seen = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    except cv2.error:
        seen = None
    if seen is None:
        return "passed on, undecodable_image there"
    assert seen.shape == (info.height, info.width, 3), f"promised {info}, decoded {seen.shape}"
    return "ok passed on"


def _check_ppm(payload: bytes) -> None:
    magic, size, depth, pixels = payload.split(b"\n", 3)
    width, height = map(int, size.split())
    assert (magic, depth, len(pixels)) == (b"P6", b"255", width * height * 3)


def most_resident_bytes() -> int:
    """The most that the process's resident memory ever was."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resident_bytes() -> int:
    """The process's resident memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> None:
    stdin: io.BufferedReader = sys.stdin.buffer
    allowed_bytes = most_resident_bytes() + MOST_MEMORY_BYTES
    while header := stdin.read(4):
        data = stdin.read(struct.unpack("<I", header)[0])
        started = time.process_time()
        fault = None
        try:
            outcome = answer(data)
        except Exception:
            outcome, fault = "fault", traceback.format_exc()
        seconds = time.process_time() - started
        if seconds > MOST_SECONDS:
            outcome, fault = "fault", f"it took {seconds:.1f} s of processor time"
        elif most_resident_bytes() > allowed_bytes:
            outcome, fault = "fault", f"it took {most_resident_bytes() >> 20} MiB of memory"
            allowed_bytes = most_resident_bytes() + MOST_MEMORY_BYTES
        line = {"outcome": outcome, "fault": fault, "seconds": seconds, "resident_bytes": resident_bytes()}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
