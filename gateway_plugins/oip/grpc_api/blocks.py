"""Bytes that arrive, in blocks."""

from collections import deque

BLOCK_BYTES = 16 * 1024
"""Smaller pieces are put together, since each block takes some memory of its own."""


class Blocks:
    """Bytes in the order of their arrival.

    One array of all would have to grow. Many such arrays that grow beside each other are moved again and again, and
    leave holes in the heap of more bytes than they have.
    """

    def __init__(self) -> None:
        self._blocks: deque[bytes | bytearray] = deque()
        self._nbytes = 0

    def __len__(self) -> int:
        return self._nbytes

    def append(self, data: bytes) -> None:
        """Add bytes at the end."""
        last = self._blocks[-1] if self._blocks else b""
        if isinstance(last, bytearray) and len(last) + len(data) <= BLOCK_BYTES:
            last += data
        else:
            self._blocks.append(data if len(data) >= BLOCK_BYTES else bytearray(data))
        self._nbytes += len(data)

    def first(self, nbytes: int) -> bytes:
        """A copy of the first bytes, which stay."""
        copied = b""
        for block in self._blocks:
            copied += block[: nbytes - len(copied)]
            if len(copied) == nbytes:
                break
        return copied

    def take(self, nbytes: int) -> bytes:
        """Remove the first bytes, of which there must be as many."""
        taken: list[bytes | bytearray | memoryview] = []
        left = nbytes
        while left:
            block = self._blocks.popleft()
            if len(block) > left:
                self._blocks.appendleft(bytearray(memoryview(block)[left:]))
                taken.append(memoryview(block)[:left])
                break
            taken.append(block)
            left -= len(block)
        self._nbytes -= nbytes
        return b"".join(taken)
