"""Images that crash the process of a model: retried once, each alone, and then refused for a while.

Images are known by the codes of gateway.triton.seal, so that no client can make an image with the code of another.
"""

import contextlib
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

SUSPECT, REFUSE, CLEAR = "suspect", "refuse", "clear"
REMEMBERED = 10_000
"""Upper bound of images of each kind; the oldest are dropped first."""
MOST_BYTES = 4 * 2**20
"""Size from which nothing is written to the file: it takes hours of crashes, and each worker keeps its own record."""


class Notes:
    """Lines in a file shared by processes that trust each other.

    Without a path, or if the file cannot be used, nothing is written or read.
    """

    def __init__(self, path: Path | None) -> None:
        self._file: int | None = None
        if path is not None:
            with contextlib.suppress(OSError):
                self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._read_bytes = 0
        self.shared = self._file is not None
        """Whether there is a file, in which other processes may have written."""

    def write(self, kind: str, code: bytes, until: float) -> None:
        """Append a line for all workers, including this one (see `new`); an append of one line is atomic."""
        if self._file is not None and os.fstat(self._file).st_size < MOST_BYTES:
            with contextlib.suppress(OSError):  # such as a full disk
                os.write(self._file, f"{kind} {code.hex()} {until!r}\n".encode())

    def new(self) -> Sequence[tuple[str, bytes, float]]:
        """The lines written by any worker since the last call: kind, code, and the time until which it is valid."""
        if self._file is None or os.fstat(self._file).st_size == self._read_bytes:
            return ()
        lines = os.pread(self._file, 2 * MOST_BYTES, self._read_bytes)
        self._read_bytes += len(lines)
        notes = []
        for line in lines.splitlines():
            with contextlib.suppress(ValueError):  # a line truncated by a full disk
                kind, code, until = line.decode().split()
                notes.append((kind, bytes.fromhex(code), float(until)))
        return notes

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class Quarantine:
    """Remembers images that were in flight when a process died, for `seconds`; 0 turns it off.

    Workers that share a port share `notes`, so that an image which crashed a process of one is known to all.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic, notes: Notes | None = None) -> None:
        self._seconds = seconds
        self._clock = clock  # shared by all processes of the machine
        self._notes = notes or Notes(None)
        self._suspects: OrderedDict[bytes, float] = OrderedDict()
        self._refused: OrderedDict[bytes, float] = OrderedDict()
        self.is_active = self._notes.shared
        """Whether any image may be suspicious: none is before a process dies."""

    def suspect(self, codes: Iterable[bytes]) -> None:
        """Record images that were in flight when a process died: any of them may be the cause."""
        for code in codes:
            self._note(SUSPECT, code)

    def refuse(self, code: bytes) -> None:
        """Record an image that crashed a process while it was the only one."""
        self._note(REFUSE, code)

    def clear(self, code: bytes) -> None:
        """Remove an image from the suspects: it was answered."""
        if self.is_suspect(code):
            self._note(CLEAR, code)

    def suspicious(self, codes: Sequence[bytes]) -> list[int]:
        """The positions of the images that are refused, or have to be sent alone."""
        if self._notes.shared:
            self._read_notes()
        if not self._suspects and not self._refused:
            return []
        kept = (self._suspects, self._refused)
        return [row for row, code in enumerate(codes) if any(self._holds(each, code) for each in kept)]

    def is_suspect(self, code: bytes) -> bool:
        """Whether an image has to be sent alone."""
        self._read_notes()
        return self._holds(self._suspects, code)

    def is_refused(self, code: bytes) -> bool:
        """Whether an image is refused."""
        self._read_notes()
        return self._holds(self._refused, code)

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
        if kind == CLEAR:
            return
        self.is_active = True
        kept = self._refused if kind == REFUSE else self._suspects
        kept[code] = until
        kept.move_to_end(code)
        while len(kept) > REMEMBERED:
            kept.popitem(last=False)

    def _read_notes(self) -> None:
        for note in self._notes.new():
            self._remember(*note)

    def _holds(self, kept: "OrderedDict[bytes, float]", code: bytes) -> bool:
        until = kept.get(code)
        if until is None:
            return False
        if self._clock() >= until:
            del kept[code]
            return False
        return True
