"""Quantities in messages that people read: 20 MiB, 108 megapixels. Details of errors stay plain numbers."""

_UNITS = (
    *(("TiB", 2**40), ("TB", 10**12), ("GiB", 2**30), ("GB", 10**9)),
    *(("MiB", 2**20), ("MB", 10**6), ("KiB", 2**10), ("kB", 10**3)),
)
_FEW_BYTES = 10_000
_MEGAPIXEL = 1_000_000


def size(nbytes: int) -> str:
    """A number of bytes in the largest unit of which it is a whole number of tenths: 20 MiB, 1.5 GiB, 2 kB.

    Any other is exact up to 10,000 bytes and rounded down to tenths above, so that "more than 14.3 MiB" stays true.
    """
    fitting = [(unit, each) for unit, each in _UNITS if nbytes >= each and nbytes * 10 % each == 0]
    if not fitting:
        if nbytes < _FEW_BYTES:
            return f"{nbytes:,} {'byte' if nbytes == 1 else 'bytes'}"
        fitting = [(unit, each) for unit, each in _UNITS[::2] if nbytes >= each]
    unit, each = fitting[0]
    return f"{_tenths(nbytes * 10 // each)} {unit}"


def pixels(number: int) -> str:
    """A number of pixels: 12.2 megapixels, rounded up to tenths, or 1,200 pixels."""
    if number < _MEGAPIXEL:
        return f"{number:,} pixels"
    tenths = -(-number * 10 // _MEGAPIXEL)
    return f"{_tenths(tenths)} megapixel{'s' * (tenths != 10)}"


def pixels_beyond(number: int, most: int) -> tuple[str, str]:
    """A number of pixels, and the limit that it exceeds in the same unit: "108 megapixels", "50".

    One is rounded up and one down, so that the first always reads as more than the second.
    """
    if most < _MEGAPIXEL:
        return f"{number:,} pixels", f"{most:,}"
    return pixels(number), _tenths(most * 10 // _MEGAPIXEL)


def _tenths(number: int) -> str:
    return f"{number / 10:,.1f}".removesuffix(".0")
