"""Forms batches of a request's images."""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class BatchPlanner(Generic[T]):
    """Groups items of similar size.

    A batch is padded to its longest item. Items whose sizes share their highest bit differ by less than a factor of
    two, so padding less than doubles the bytes, whatever sizes a request mixes.
    """

    def __init__(self, max_items: int, max_bytes: int, size: Callable[[T], int]) -> None:
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._size = size
        self._groups: dict[int, deque[T]] = {}  # roughly in the order of each group's oldest item

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def add(self, item: T) -> None:
        """Add an item to its group."""
        self._groups.setdefault(self._size(item).bit_length(), deque()).append(item)

    def take(self) -> list[T]:
        """The next batch: at most `max_items` and `max_bytes` with padding, but at least one item; [] if none waits."""
        if not self._groups:
            return []
        key = next(iter(self._groups))
        group = self._groups.pop(key)
        batch = [group.popleft()]
        longest = self._size(batch[0])
        while group and len(batch) < self._max_items:
            longest = max(longest, self._size(group[0]))
            if longest * (len(batch) + 1) > self._max_bytes:
                break
            batch.append(group.popleft())
        if group:
            self._groups[key] = group  # last in the order: groups alternate
        return batch
