"""Images that end the process of a model: tried once more, each alone, and then refused for a while.

Images are known by the codes of gateway.triton.seal, so that nobody can make one that is taken for another.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from gateway.triton.notes import Notes

SUSPECT, CONVICT, ACQUIT = "suspect", "convict", "acquit"
REMEMBERED = 10_000
"""Images of each kind; the oldest are forgotten first."""


class Quarantine:
    """What is known of images that were under way when a process died. With `seconds` 0 nothing is remembered.

    Workers that share a port share `notes`, so that an image which one of them has met is known to all.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic, notes: Notes | None = None) -> None:
        self._seconds = seconds
        self._clock = clock  # of the machine, not of the process
        self._notes = notes or Notes(None)
        self._suspects: OrderedDict[bytes, float] = OrderedDict()
        self._convicts: OrderedDict[bytes, float] = OrderedDict()

    def suspect(self, codes: Iterable[bytes]) -> None:
        """Note images that were under way when a process died: any of them may have ended it."""
        for code in codes:
            self._note(SUSPECT, code)

    def convict(self, code: bytes) -> None:
        """Note an image that was alone when a process died that had just answered."""
        self._note(CONVICT, code)

    def acquit(self, code: bytes) -> None:
        """Note an image that was answered."""
        if self.is_suspect(code):
            self._note(ACQUIT, code)

    def is_suspect(self, code: bytes) -> bool:
        """Whether an image has to travel alone."""
        return self._holds(self._suspects, code)

    def is_convicted(self, code: bytes) -> bool:
        """Whether an image is refused."""
        return self._holds(self._convicts, code)

    def close(self) -> None:
        """Share nothing any more."""
        self._notes.close()

    def _note(self, kind: str, code: bytes) -> None:
        if self._seconds > 0:
            until = self._clock() + self._seconds
            self._remember(kind, code, until)
            self._notes.write(kind, code, until)

    def _remember(self, kind: str, code: bytes, until: float) -> None:
        self._suspects.pop(code, None)
        if kind == ACQUIT:
            return
        kept = self._convicts if kind == CONVICT else self._suspects
        kept[code] = until
        kept.move_to_end(code)
        while len(kept) > REMEMBERED:
            kept.popitem(last=False)

    def _holds(self, kept: "OrderedDict[bytes, float]", code: bytes) -> bool:
        for note in self._notes.new():
            self._remember(*note)
        until = kept.get(code)
        if until is None:
            return False
        if self._clock() >= until:
            del kept[code]
            return False
        return True
