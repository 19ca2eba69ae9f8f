"""Decoding large photographs in child processes, and in threads beside it: `python -m bench.decoding`."""

import argparse
import asyncio
import os
import resource
import time
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import skimage.data

from gateway.cores import usable_cores
from gateway.ingest.decoders.budget import DecodeLimits
from gateway.ingest.decoders.pool import Decoders
from gateway.ingest.decoding import decode
from gateway.ingest.inspection import inspect
from gateway.ingest.upload_limits import Limits
from gateway.settings import Settings

SIZES = {
    "JPEG, 12 MP": (4_000, 3_000, ".jpg"),
    "JPEG, 3 MP": (2_000, 1_500, ".jpg"),
    "PNG, 3 MP": (2_000, 1_500, ".png"),
}
AT_ONCE = 8


def photograph(width: int, height: int, extension: str) -> bytes:
    """A photograph of an espresso, in this size."""
    pixels = cv2.resize(skimage.data.coffee(), (width, height), interpolation=cv2.INTER_CUBIC)
    noise = np.random.default_rng(0).integers(-4, 5, pixels.shape, np.int16)
    pixels = np.clip(pixels + noise, 0, 255).astype(np.uint8)
    return cv2.imencode(extension, pixels)[1].tobytes()


async def measure(data: bytes, count: int, seconds: float, *, threads: bool) -> tuple[float, float]:
    """Images per second, and milliseconds of processor time per image; that of children is counted when they end."""
    info, max_side = inspect(data, Limits.from_settings(SETTINGS)), SETTINGS.decode_max_side
    loop, done = asyncio.get_running_loop(), 0
    limits = DecodeLimits(SETTINGS.decode_cpu_seconds, SETTINGS.decode_memory_bytes, SETTINGS.max_image_pixels)
    before = _cpu_seconds()
    with ThreadPoolExecutor(count) as pool:
        async with Decoders(count, limits=limits) as decoders:

            async def client() -> None:
                nonlocal done
                while time.perf_counter() < end:
                    if threads:
                        await loop.run_in_executor(pool, lambda: decode(data, info, max_side).to_bytes())
                    else:
                        await decoders.decode(data, info, max_side, decoders.account())
                    done += 1

            await asyncio.gather(*(decoders.decode(data, info, max_side, decoders.account()) for _ in range(count)))
            begun = time.perf_counter()
            end = begun + seconds
            await asyncio.gather(*(client() for _ in range(AT_ONCE)))
            rate = done / (time.perf_counter() - begun)
    return rate, (_cpu_seconds() - before) / (done + count) * 1_000


def _cpu_seconds() -> float:
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


SETTINGS = Settings()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.decoding", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each cell, in three rounds")
    parser.add_argument("--count", type=int, default=round(usable_cores()), help="threads, and children")
    options = parser.parse_args()
    print(
        f"{options.count} threads or children, {AT_ONCE} pictures at once, {os.cpu_count()} cores; the best of 3 rounds"
    )
    for name, size in SIZES.items():
        data, best = photograph(*size), {True: (0.0, 0.0), False: (0.0, 0.0)}
        for _ in range(3):
            for threads in best:
                found = asyncio.run(measure(data, options.count, options.seconds / 3, threads=threads))
                best[threads] = max(best[threads], found)
        parts = [
            f"{'threads' if t else 'children'} {r:6.1f}/s, {ms:5.1f} ms of CPU each" for t, (r, ms) in best.items()
        ]
        print(f"{name:12} {len(data) / 1e6:5.1f} MB  {'   '.join(parts)}")


if __name__ == "__main__":
    main()
