"""Images that end the process of a model: tried once more, each alone, and then refused for a while.

Images are known by the codes of gateway.triton.seal, so that nobody can make one that is taken for another.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

REMEMBERED = 10_000
"""Images of each kind; the oldest are forgotten first."""


class Quarantine:
    """What is known of images that were under way when a process died. With `seconds` 0 nothing is remembered."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._suspects: OrderedDict[bytes, float] = OrderedDict()
        self._convicts: OrderedDict[bytes, float] = OrderedDict()

    def suspect(self, codes: Iterable[bytes]) -> None:
        """Note images that were under way when a process died: any of them may have ended it."""
        for code in codes:
            self._remember(self._suspects, code)

    def convict(self, code: bytes) -> None:
        """Note an image that was alone when a process died that had just answered."""
        self._suspects.pop(code, None)
        self._remember(self._convicts, code)

    def acquit(self, code: bytes) -> None:
        """Note an image that was answered."""
        self._suspects.pop(code, None)

    def is_suspect(self, code: bytes) -> bool:
        """Whether an image has to travel alone."""
        return self._holds(self._suspects, code)

    def is_convicted(self, code: bytes) -> bool:
        """Whether an image is refused."""
        return self._holds(self._convicts, code)

    def _remember(self, kept: "OrderedDict[bytes, float]", code: bytes) -> None:
        if self._seconds <= 0:
            return
        kept[code] = self._clock() + self._seconds
        kept.move_to_end(code)
        while len(kept) > REMEMBERED:
            kept.popitem(last=False)

    def _holds(self, kept: "OrderedDict[bytes, float]", code: bytes) -> bool:
        until = kept.get(code)
        if until is None:
            return False
        if self._clock() >= until:
            del kept[code]
            return False
        return True
