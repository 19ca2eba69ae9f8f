# ruff: noqa: T201 - a command prints
"""The command `python -m tests.native.fuzz [--seconds 60] [--seed 0]`: random pictures against the installed Pillow.

Sizes are mostly small or lopsided, parts and gaps between rows are random, and after each picture come arguments that
are nonsense and have to be refused. Under `make sanitize`, a read or a write outside the buffers ends it.
"""

import argparse
import random
import sys
import time

import exact_resize
import numpy as np

from tests.native.pictures import INSTALLED, Pixels, Size, by_pillow, noise


def side(chance: random.Random) -> int:
    """A number of pixels: tiny, usual or large."""
    return chance.choice([chance.randint(1, 6), chance.randint(1, 64), chance.randint(1, 700)])


def apart(pixels: Pixels, chance: random.Random) -> Pixels:
    """The same picture in a buffer of its own that ends where it ends, its rows some pixels apart."""
    height, width, _ = pixels.shape
    gap = 3 * chance.choice([0, 0, 1, 2, 9])
    strides = (3 * width + gap, 3, 1)
    buffer = np.zeros((height - 1) * strides[0] + 3 * width, np.uint8)
    view = np.lib.stride_tricks.as_strided(buffer, pixels.shape, strides)
    view[:] = pixels
    return view


def once(chance: random.Random) -> str | None:
    """One comparison; what is wrong, or None."""
    shape, size = (side(chance), side(chance)), (side(chance), side(chance))
    kernel, by = chance.choice(exact_resize.FILTERS), chance.choice(exact_resize.INSTRUCTIONS)
    corner: Size = (chance.randrange(size[0]), chance.randrange(size[1]))
    part = (chance.randint(1, size[0] - corner[0]), chance.randint(1, size[1] - corner[1]))
    pixels = noise(*shape, chance.randrange(1000))
    target = apart(np.zeros((*part, 3), np.uint8), chance)
    said = f"{shape} to {size}, {part} at {corner}, {kernel}, {by}"
    exact_resize.resize(apart(pixels, chance), target, size, corner=corner, filter=kernel, pillow=INSTALLED, by=by)
    wanted = by_pillow(pixels, size, kernel)[corner[0] : corner[0] + part[0], corner[1] : corner[1] + part[1]]
    if not np.array_equal(target, wanted):
        return f"other bytes: {said}"
    numbers = [chance.choice([-(2**31), -1, 0, 2**20 + 1, 2**31 - 1]) for _ in range(4)]
    try:
        exact_resize.resize(pixels, target, (numbers[0], numbers[1]), corner=(numbers[2], numbers[3]), filter=kernel)
    except ValueError:
        return None
    return f"not refused: {numbers}"


def main() -> int:
    """Compare until the time is over; 1 where something differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.native.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to go on")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the same seed makes the same pictures")
    options = parser.parse_args()
    chance, ends, count = random.Random(options.seed), time.monotonic() + options.seconds, 0
    while time.monotonic() < ends:
        count += 1
        fault = once(chance)
        if fault:
            print(f"FAULT seed {options.seed}, picture {count}: {fault}", file=sys.stderr)
            return 1
    print(f"seed {options.seed}: {count} pictures like Pillow {'.'.join(map(str, INSTALLED))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
