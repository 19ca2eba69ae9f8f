"""Damage to files, as by transfers, disks and attackers."""

import random
import struct
from collections.abc import Sequence

from tests.encoders import PNG_SIGNATURE, png_chunk

_INTERESTING_BYTES = bytes([0, 1, 0x7F, 0x80, 0xD8, 0xD9, 0xDA, 0xFF])
_INTERESTING_WORDS = (0, 1, 2, 0x7F, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def mutate(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """One to eight kinds of damage; a PNG mostly gets correct checksums."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        if not damaged:
            break
        rng.choice(_DAMAGES)(rng, damaged, others)
    if damaged.startswith(PNG_SIGNATURE) and rng.random() < 0.8:
        return repair_png_checksums(bytes(damaged))
    return bytes(damaged)


def repair_png_checksums(data: bytes) -> bytes:
    """The same chunks with correct checksums, as far as the chunks can be recognised."""
    out, position = bytearray(PNG_SIGNATURE), len(PNG_SIGNATURE)
    while position + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        contents = data[position + 8 : position + 8 + length]
        if len(contents) < length:
            break
        out += png_chunk(kind, contents)
        position += 12 + length
    return bytes(out) + data[position:]


def _place(rng: random.Random, data: bytearray) -> int:
    """Mostly in the first bytes, where the lengths and sizes are."""
    return rng.randrange(min(len(data), 200) if rng.random() < 0.6 else len(data))


def _flip_bit(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    data[_place(rng, data)] ^= 1 << rng.randrange(8)


def _set_byte(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    data[_place(rng, data)] = rng.choice(_INTERESTING_BYTES)


def _set_word(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    place, order = _place(rng, data), rng.choice("<>")
    word = struct.pack(f"{order}I", rng.choice(_INTERESTING_WORDS))
    word = word[: rng.choice((2, 4))] if order == "<" else word[-rng.choice((2, 4)) :]
    data[place : place + len(word)] = word


def _noise(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    place = _place(rng, data)
    length = min(rng.randrange(1, 64), len(data) - place)
    data[place : place + length] = rng.randbytes(length)


def _cut_out(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    place = _place(rng, data)
    del data[place : place + rng.randrange(1, 2 + len(data) // 4)]


def _cut_off(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    del data[rng.randrange(len(data)) :]


def _repeat(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    place = _place(rng, data)
    piece = bytes(data[place : place + rng.randrange(1, 512)])
    data[place:place] = piece * rng.randrange(1, 5)


def _splice(rng: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    other = rng.choice(others)
    start = rng.randrange(len(other))
    piece = other[start : start + rng.randrange(1, 2048)]
    place = _place(rng, data)
    data[place : place + (len(piece) if rng.random() < 0.5 else 0)] = piece


_DAMAGES = (_flip_bit, _set_byte, _set_word, _noise, _cut_out, _cut_off, _repeat, _splice)
