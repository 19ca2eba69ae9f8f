"""Frames of HTTP/2 as they arrive: bounds that hold before the library parses anything (RFC 9113, section 10.5)."""

from collections.abc import Callable

from h2.errors import ErrorCodes

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES = 9
FRAME_BYTES = 64 * 1024
"""Largest payload of a frame that clients may send; a frame that is not complete is held beside the upload buffer."""
BATCH_FRAMES, BATCH_BYTES, SMALL_HEADER_BYTES = 16, 64 * 1024, 1024
"""Frames and bytes that are parsed between two looks at the clock; a larger header block ends a batch."""
CONTROL_FRAMES, CONTROL_FRAMES_PER_SECOND = 1_000, 200
"""Frames that carry neither data nor headers (PING, SETTINGS, WINDOW_UPDATE, empty DATA): at once, and restored."""
CONTROL_FRAMES_PER_CALL, BYTES_PER_CONTROL_FRAME = 16, 1_024
"""Control frames that a call allows, and bytes of data in either direction that allow one more."""
RESETS, RESETS_PER_SECOND = 1_000, 100
"""Calls that a client may reset at once, and how many each second restores."""

DATA, HEADERS, RST_STREAM, GOAWAY, CONTINUATION = 0x0, 0x1, 0x3, 0x7, 0x9
END_STREAM, END_HEADERS = 0x1, 0x4


class ConnectionFault(Exception):
    """The client breaks a limit of the connection, which ends with `code`."""

    def __init__(self, code: ErrorCodes, message: str) -> None:
        super().__init__(message)
        self.code = code


class Budget:
    """At most `most` at once, of which each second restores `per_second`. `now` is a clock in seconds."""

    def __init__(self, most: float, per_second: float, now: Callable[[], float]) -> None:
        self._most, self._per_second, self._now = most, per_second, now
        self._left, self._since = most, now()

    def take(self) -> bool:
        """Take one; False if none is left."""
        if self._left < 1:
            now = self._now()
            self.restore((now - self._since) * self._per_second)
            self._since = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def restore(self, amount: float) -> None:
        """Restore `amount`, up to the most."""
        self._left = min(self._most, self._left + amount)


class FrameGate:
    """Splits what arrives into frames, and checks each by its header of nine bytes.

    A block of headers may have `max_header_bytes`, with its CONTINUATION frames and their headers. GOAWAY is not passed
    on: h2 would send nothing more after it, but the responses to open calls are still due.
    """

    def __init__(self, max_header_bytes: int, now: Callable[[], float]) -> None:
        self._max_header_bytes = max_header_bytes
        self._buffer = bytearray()
        self._preface_left = True
        self._block_bytes = 0
        self._resets = Budget(RESETS, RESETS_PER_SECOND, now)
        self.control = Budget(CONTROL_FRAMES, CONTROL_FRAMES_PER_SECOND, now)
        self.client_leaves = False
        """Whether the client has sent GOAWAY."""
        self.has_more = False
        """Whether complete frames may be left after `take`."""

    @property
    def is_partial(self) -> bool:
        """Whether the preface, a frame or a header block is incomplete."""
        return self._preface_left or bool(self._buffer) or self._block_bytes > 0

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._buffer += data

    def take(self) -> bytes:
        """The next complete frames, at most a batch; raises ConnectionFault."""
        buffer = self._buffer
        end = frames = 0
        self.has_more = False
        if self._preface_left:
            if not PREFACE.startswith(buffer[: len(PREFACE)]):
                raise ConnectionFault(ErrorCodes.PROTOCOL_ERROR, "The connection does not begin with HTTP/2's preface.")
            if len(buffer) < len(PREFACE):
                return b""
            self._preface_left = False
            end = len(PREFACE)
        while len(buffer) - end >= HEADER_BYTES:
            length = int.from_bytes(buffer[end : end + 3])
            kind, flags = buffer[end + 3], buffer[end + 4]
            if length > FRAME_BYTES:
                raise ConnectionFault(ErrorCodes.FRAME_SIZE_ERROR, f"A frame has {length:,} bytes.")
            if kind in (HEADERS, CONTINUATION) and self._block_bytes + length > self._max_header_bytes:
                raise ConnectionFault(ErrorCodes.ENHANCE_YOUR_CALM, "The header block of a call is too large.")
            if len(buffer) - end - HEADER_BYTES < length:
                break
            if kind == GOAWAY:
                self.client_leaves = True
                if end:
                    self.has_more = True
                    break
                del buffer[: HEADER_BYTES + length]
                continue
            self._count(kind, flags, length)
            end += HEADER_BYTES + length
            frames += 1
            is_large_block = kind in (HEADERS, CONTINUATION) and length > SMALL_HEADER_BYTES
            if frames >= BATCH_FRAMES or end >= BATCH_BYTES or is_large_block:
                self.has_more = True
                break
        complete = bytes(buffer[:end])
        del buffer[:end]
        return complete

    def _count(self, kind: int, flags: int, length: int) -> None:
        if kind in (HEADERS, CONTINUATION):
            self._block_bytes = 0 if flags & END_HEADERS else self._block_bytes + HEADER_BYTES + length
            if kind == HEADERS:
                self.control.restore(CONTROL_FRAMES_PER_CALL)
        elif kind == DATA and (length or flags & END_STREAM):
            self.control.restore(length / BYTES_PER_CONTROL_FRAME)
        elif not (self._resets if kind == RST_STREAM else self.control).take():
            raise ConnectionFault(ErrorCodes.ENHANCE_YOUR_CALM, "The client sends too many control frames or resets.")
