"""A tokenizer for JSON that arrives in chunks; only the current chunk is held."""

import re
from collections.abc import AsyncIterable, AsyncIterator

from gateway.errors import HeadersTooLarge, InvalidBody
from gateway.ingest.upload import Limits, request_too_large
from gateway.time_slices import TimeSlice
from gateway.values.quantities import size
from gateway_plugins.shared import json_text
from gateway_plugins.shared.json_text import MAX_DEPTH, JsonError

MAX_NAME_BYTES = 8 * 1024
_NOT_SPACE = re.compile(rb"[^ \t\r\n]")
_SCALAR = re.compile(rb"[-+.0-9A-Za-z]*")
_CHARACTERS = re.compile(rb'[^"\\]*(?:\\(?:[^u]|u[0-9a-fA-F]{4})[^"\\]*)*', re.DOTALL)
_LONGEST_ESCAPE_BYTES = 6
# The expression's memory grows with the escapes in a piece.
_MAX_PIECE_BYTES = 64 * 1024


def invalid(reason: str) -> InvalidBody:
    """The error of a body that is not JSON, or is other JSON than it should be."""
    return InvalidBody(f"The JSON body is invalid: {reason}.")


class JsonSource:
    """The tokens of a JSON text; every method raises InvalidBody if the text does not have the expected one."""

    def __init__(self, chunks: AsyncIterable[bytes], limits: Limits) -> None:
        self._chunks = aiter(chunks)
        self._limits = limits
        self._received = 0
        self._header_bytes = 0
        self._chunk = b""
        self._position = 0
        self._time_slice = TimeSlice()

    async def symbol(self) -> bytes:
        """The next byte that is not white space; b"" at the end."""
        await self._time_slice.pause_if_over()
        while True:
            match = _NOT_SPACE.search(self._chunk, self._position)
            if match is not None:
                self._position = match.end()
                return match.group()
            # Consumed, so that endless white space is neither kept nor scanned again.
            self._position = len(self._chunk)
            if not await self._next_chunk():
                return b""

    def push_back(self) -> None:
        """Let the last symbol be read again."""
        self._position = max(self._position - 1, 0)

    async def expect(self, symbol: bytes, reason: str) -> None:
        """Read one symbol; raises InvalidBody if it is another."""
        if await self.symbol() != symbol:
            raise invalid(reason)

    async def name(self) -> str:
        """A member's name and its colon."""
        await self.expect(b'"', "a member's name is missing")
        name = await self.text()
        await self.expect(b":", "a member's name must be followed by a colon")
        return name

    async def expect_end(self) -> None:
        """Raises InvalidBody if anything but white space follows."""
        if await self.symbol() != b"":
            raise invalid("there is something after the object")

    async def members(self, *, counted: bool = True) -> AsyncIterator[str]:
        """Yield the names of an object's members, after its opening brace; read the value of each before the next.

        With `counted` the names count towards `max_header_bytes`, for objects with members of any name.
        """
        if await self.symbol() == b"}":
            return
        self.push_back()
        while True:
            name = await self.name()
            if counted:
                self._count(len(name))
            yield name
            symbol = await self.symbol()
            if symbol == b"}":
                return
            if symbol != b",":
                raise invalid("members must be separated by commas")

    async def elements(self, what: str = "elements") -> AsyncIterator[int]:
        """Yield the indexes of an array's elements, after its opening bracket; read each element before the next."""
        if await self.symbol() == b"]":
            return
        self.push_back()
        number = 0
        while True:
            yield number
            number += 1
            symbol = await self.symbol()
            if symbol == b"]":
                return
            if symbol != b",":
                raise invalid(f"{what} must be separated by commas")

    async def value(self) -> object:
        """Read a small value. All values, with the names of `members`, may have `max_header_bytes` together.

        Raises HeadersTooLarge beyond that.
        """
        raw = bytearray()
        depth = 0
        while not raw or depth > 0:
            symbol = await self.symbol()
            token = symbol
            if symbol == b'"':
                async for piece in self._raw_pieces():
                    self._count(len(piece))
                    token += piece
                token += b'"'
            elif symbol in (b"{", b"["):
                depth += 1
                if depth > MAX_DEPTH:
                    raise invalid(f"it is nested more than {MAX_DEPTH} deep")
            elif symbol in (b"}", b"]"):
                depth -= 1
            elif symbol not in (b",", b":"):
                # A space still separates two numbers that white space separated before.
                token += await self._scalar() + b" "
            if symbol == b"":
                raise invalid("it ends in the middle of a value")
            self._count(1)
            raw += token
        try:
            # The spaces that _scalar adds do not count.
            return json_text.decode(raw, max_bytes=2 * self._limits.max_header_bytes)
        except JsonError as exc:
            raise invalid(str(exc)) from exc

    async def text(self) -> str:
        """The rest of a short string, after its opening quote."""
        raw = bytearray()
        async for piece in self._raw_pieces():
            raw += piece
            if len(raw) > MAX_NAME_BYTES:
                raise invalid(f"a name or URL is longer than {size(MAX_NAME_BYTES)}")
        try:
            return json_text.decode_string(raw.decode())
        except UnicodeDecodeError as exc:
            raise invalid("it is not UTF-8") from exc
        except JsonError as exc:
            raise invalid(str(exc)) from exc

    async def text_or_null(self) -> str:
        """A short string; "" for null."""
        symbol = await self.symbol()
        if symbol == b"n":
            for letter in (b"u", b"l", b"l"):
                await self.expect(letter, "a value is neither a string nor null")
            return ""
        if symbol != b'"':
            raise invalid("a value is neither a string nor null")
        return await self.text()

    async def string_pieces(self) -> AsyncIterator[bytes]:
        """The rest of a long string of ASCII characters, after its opening quote, without its escapes."""
        async for piece in self._raw_pieces():
            # Some encoders escape "/", "+" and line breaks. Latin-1, since a character beyond ASCII may be cut in two.
            yield _unescape(piece) if b"\\" in piece else piece

    async def _scalar(self) -> bytes:
        """The rest of a number or a word."""
        scalar = b""
        while True:
            match = _SCALAR.match(self._chunk, self._position)
            assert match is not None
            self._position = match.end()
            self._count(len(match.group()))
            scalar += match.group()
            if self._position < len(self._chunk) or not await self._next_chunk():
                return scalar

    def _count(self, nbytes: int) -> None:
        self._header_bytes += nbytes
        limit = self._limits.max_header_bytes
        if self._header_bytes > limit:
            raise HeadersTooLarge(
                f"The JSON of the request has more than {size(limit)} beside its images.",
                limit="max_header_bytes",
                value=limit,
            )

    async def _raw_pieces(self) -> AsyncIterator[bytes]:
        """Pieces of a string up to its closing quote, in which no escape is cut in two."""
        while True:
            await self._time_slice.pause_if_over()
            end = min(len(self._chunk), self._position + _MAX_PIECE_BYTES)
            quote = self._chunk.find(b'"', self._position, end)
            piece = self._chunk[self._position : end if quote < 0 else quote]
            if b"\\" in piece:
                match = _CHARACTERS.match(self._chunk, self._position, end)
                piece = b"" if match is None else match.group()
            if piece:
                self._position += len(piece)
                yield piece
            elif self._chunk.startswith(b'"', self._position):
                self._position += 1
                return
            elif len(self._chunk) - self._position >= _LONGEST_ESCAPE_BYTES:
                raise invalid("a string has a bad escape")
            elif not await self._next_chunk():
                raise invalid("a string has no end")

    async def _next_chunk(self) -> bool:
        rest = self._chunk[self._position :]
        async for chunk in self._chunks:
            self._received += len(chunk)
            if self._received > self._limits.max_request_bytes:
                raise request_too_large(self._limits)
            self._chunk, self._position = rest + chunk, 0
            return True
        return False


def _unescape(piece: bytes) -> bytes:
    try:
        return json_text.unescape(piece.decode("latin-1")).encode(errors="replace")
    except JsonError as exc:
        raise invalid(str(exc)) from exc
