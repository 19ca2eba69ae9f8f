"""Bits of a header, from the highest on, as AV1 and HEVC number them."""

_MOST_BYTES = 256
HEADER_STEPS = 50
"""What reading such a header may cost; see gateway.ingest.formats.step_limit."""


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
        left = max(self._left, 0)
        rest = self._value & ((1 << left) - 1)
        zeros = left - rest.bit_length()
        self._left = left - zeros - 1 if rest else 0
        return (1 << zeros) - 1 + self.read(zeros) if zeros < 32 else 2**32 - 1
