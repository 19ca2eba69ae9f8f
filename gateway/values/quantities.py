"""Numbers of bytes in messages that people read: 20 MiB. Details of errors stay plain numbers."""

_UNITS = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_FEW_BYTES = 10_000


def size(nbytes: int) -> str:
    """A number of bytes in the largest unit that fits: 20 MiB, 1.5 GiB.

    It is rounded down to tenths, so that "more than 14.3 MiB" stays true; up to 10,000 bytes it is exact.
    """
    if nbytes < _UNITS[-1][1] or (nbytes < _FEW_BYTES and nbytes % _UNITS[-1][1]):
        return f"{nbytes:,} {'byte' if nbytes == 1 else 'bytes'}"
    unit, each = next(pair for pair in _UNITS if nbytes >= pair[1])
    return f"{nbytes * 10 // each / 10:,.1f}".removesuffix(".0") + f" {unit}"
