"""Images that crash the process of a model: retried once, each alone, and then refused for a while.

Images are known by the codes of gateway.triton.seal, so that no client can make an image with the code of another.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from gateway.triton.notes import Notes

SUSPECT, CONVICT, ACQUIT = "suspect", "convict", "acquit"
REMEMBERED = 10_000
"""Upper bound of images of each kind; the oldest are dropped first."""


class Quarantine:
    """Remembers images that were in flight when a process died, for `seconds`; 0 turns it off.

    Workers that share a port share `notes`, so that an image which crashed a process of one is known to all.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic, notes: Notes | None = None) -> None:
        self._seconds = seconds
        self._clock = clock  # shared by all processes of the machine
        self._notes = notes or Notes(None)
        self._suspects: OrderedDict[bytes, float] = OrderedDict()
        self._convicts: OrderedDict[bytes, float] = OrderedDict()

    def suspect(self, codes: Iterable[bytes]) -> None:
        """Record images that were in flight when a process died: any of them may be the cause."""
        for code in codes:
            self._note(SUSPECT, code)

    def convict(self, code: bytes) -> None:
        """Record an image that crashed a process while it was the only one."""
        self._note(CONVICT, code)

    def acquit(self, code: bytes) -> None:
        """Release an image that was answered."""
        if self.is_suspect(code):
            self._note(ACQUIT, code)

    def is_suspect(self, code: bytes) -> bool:
        """Whether an image has to be sent alone."""
        return self._holds(self._suspects, code)

    def is_convicted(self, code: bytes) -> bool:
        """Whether an image is refused."""
        return self._holds(self._convicts, code)

    def close(self) -> None:
        """Close the shared notes."""
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
