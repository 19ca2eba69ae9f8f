"""Bits of a header, from the highest on, as AV1 and HEVC number them."""

_MOST_BYTES = 256


class Bits:
    """The first 256 bytes of a header; zeros behind their end, so that a cut header costs no check at each read."""

    def __init__(self, data: bytes) -> None:
        self._value = int.from_bytes(data[:_MOST_BYTES], "big")
        self._left = 8 * len(data[:_MOST_BYTES])

    def read(self, count: int) -> int:
        """The next `count` bits as a number."""
        self._left -= count
        if self._left < 0:
            return 0
        return self._value >> self._left & ((1 << count) - 1)

    def exp_golomb(self) -> int:
        """An unsigned number of variable length, by Exp-Golomb (ITU-T H.265, section 9.2; AV1, section 4.10.3)."""
        zeros = 0
        while self._left > 0 and not self.read(1):
            zeros += 1
        return (1 << zeros) - 1 + self.read(zeros) if zeros < 32 else 2**32 - 1
