"""Pools of decoders for tests."""

import functools
from dataclasses import replace
from typing import Any

from gateway.decoder.decoding import decode, ppm
from gateway.decoder.in_process import whole_header
from gateway.ingest.decoder_pool import DecoderPool
from gateway.ingest.image_formats import DecodeLimits, Header
from tests.gateway.ingest.reading import LIMITS
from tests.samples import encode, photograph

MAX_SIDE = 256
DECODE_LIMITS = DecodeLimits(cpu_seconds=3.0, memory_bytes=2**30, image_pixels=50_000_000)


def decoders(count: int = 1, **limits: Any) -> DecoderPool:
    """A pool of processes; `limits` are others than DECODE_LIMITS."""
    return DecoderPool(count, limits=replace(DECODE_LIMITS, **limits))


@functools.cache
def cat() -> bytes:
    return encode(photograph(), "PNG")


def info_of(data: bytes) -> Header:
    return whole_header(data, LIMITS)


def decoded_here(data: bytes) -> bytes:
    """What a decoder makes of a file, made in this process."""
    return b"".join(ppm(decode(data, info_of(data), MAX_SIDE)))


async def decoded(pool: DecoderPool, data: bytes, account: Any = None) -> bytes:
    return (await pool.decode(data, info_of(data), MAX_SIDE, account or pool.account())).pixels


async def works(pool: DecoderPool) -> bool:
    """Whether a sound image is decoded."""
    return (await decoded(pool, cat())).startswith(b"P6")
