"""Bodies other than multipart: one raw image, or JSON with images in base64."""

import json
import re
from collections.abc import AsyncIterable, AsyncIterator

from gateway.errors import ImageError, InvalidBody, InvalidImage, UnknownField
from gateway.ingest.base64_stream import Base64Decoder
from gateway.ingest.limits import Limits
from gateway.ingest.upload import Upload, clean_filename, file_too_large, request_too_large, too_many_files

MAX_NAME_BYTES = 8 * 1024
_NOT_SPACE = re.compile(rb"[^ \t\r\n]")
_CHARACTERS = re.compile(rb'[^"\\]*(?:\\(?:[^u]|u[0-9a-fA-F]{4})[^"\\]*)*', re.DOTALL)
_LONGEST_ESCAPE_BYTES = 6
# The expression's memory grows with the escapes in a piece.
_MAX_PIECE_BYTES = 64 * 1024


async def read_body(chunks: AsyncIterable[bytes], limits: Limits) -> bytes:
    """One raw image; raises FileTooLarge beyond `max_file_bytes`, as the error of the whole request."""
    body = bytearray()
    async for chunk in chunks:
        if len(body) + len(chunk) > limits.max_file_bytes:
            raise file_too_large(limits)
        body += chunk
    return bytes(body)


async def read_json(chunks: AsyncIterable[bytes], limits: Limits) -> AsyncIterator[Upload]:
    """Yield the images of `{"images": [{"b64": "…", "filename": "…"}]}`, in order, each as soon as it is complete.

    Base64 is decoded as it arrives, so that of an image there is never more than its own bytes. Bad base64 and an image
    beyond `max_file_bytes` are that image's error. Raises InvalidBody, UnknownField, TooManyFiles or RequestTooLarge,
    after the images before the fault.
    """
    source = _JsonSource(chunks, limits)
    await source.expect(b"{", "the body must be a JSON object with the member images")
    if await source.name() != "images":
        raise UnknownField('The body\'s only member is "images".')
    await source.expect(b"[", "images must be an array")
    index = 0
    if await source.symbol() != b"]":
        source.push_back()
        while True:
            if index == limits.max_files:
                raise too_many_files(limits)
            yield await _read_image(source, index, limits)
            index += 1
            symbol = await source.symbol()
            if symbol == b"]":
                break
            if symbol != b",":
                raise _malformed("images must be separated by commas")
    if await source.symbol() == b",":
        raise UnknownField('The body\'s only member is "images".')
    source.push_back()
    await source.expect(b"}", "the object must end after images")
    if await source.symbol() != b"":
        raise _malformed("there is something after the object")


async def _read_image(source: "_JsonSource", index: int, limits: Limits) -> Upload:
    await source.expect(b"{", "each image must be an object")
    decoder: Base64Decoder | None = None
    filename: str | None = None
    while True:
        name = await source.name()
        if name == "b64" and decoder is None:
            decoder = Base64Decoder(limits.max_file_bytes)
            await source.expect(b'"', "b64 must be a string")
            async for piece in source.string_pieces():
                decoder.write(piece)
            decoder.finish()
        elif name == "filename" and filename is None:
            filename = await source.text_or_null()
        elif name in ("b64", "filename"):
            raise _malformed(f"image {index} has two members {name}")
        else:
            raise UnknownField(f'Image {index} has an unknown member: an image has "b64" and "filename".')
        symbol = await source.symbol()
        if symbol == b"}":
            break
        if symbol != b",":
            raise _malformed("members must be separated by commas")
    if decoder is None:
        raise _malformed(f"image {index} has no b64")
    error: ImageError | None = None
    if decoder.too_large:
        error = file_too_large(limits)
    elif decoder.invalid:
        error = InvalidImage("The member b64 is not base64.")
    return Upload(index, clean_filename(filename or ""), b"" if error else bytes(decoder.data), error)


def _malformed(reason: str) -> InvalidBody:
    return InvalidBody(f"The JSON body is malformed: {reason}.")


class _JsonSource:
    """The tokens of a JSON text that arrives in chunks; only the current chunk is held."""

    def __init__(self, chunks: AsyncIterable[bytes], limits: Limits) -> None:
        self._chunks = aiter(chunks)
        self._limits = limits
        self._received = 0
        self._chunk = b""
        self._position = 0

    async def symbol(self) -> bytes:
        """The next byte that is no white space; b"" at the end."""
        while True:
            match = _NOT_SPACE.search(self._chunk, self._position)
            if match is not None:
                self._position = match.end()
                return match.group()
            if not await self._next_chunk():
                return b""

    def push_back(self) -> None:
        """Let the last symbol be read again."""
        self._position = max(self._position - 1, 0)

    async def expect(self, symbol: bytes, reason: str) -> None:
        """Take one symbol; raises InvalidBody where it is another."""
        if await self.symbol() != symbol:
            raise _malformed(reason)

    async def name(self) -> str:
        """A member's name and its colon."""
        await self.expect(b'"', "a member's name is missing")
        name = await self.text()
        await self.expect(b":", "a member's name must be followed by a colon")
        return name

    async def text(self) -> str:
        """The rest of a short string, after its opening quote."""
        raw = bytearray()
        async for piece in self._raw_pieces():
            raw += piece
            if len(raw) > MAX_NAME_BYTES:
                raise _malformed(f"a name is longer than {MAX_NAME_BYTES} bytes")
        try:
            return _unescape(raw.decode())
        except UnicodeDecodeError as exc:
            raise _malformed("it is not UTF-8") from exc

    async def text_or_null(self) -> str:
        """A short string; "" for null."""
        symbol = await self.symbol()
        if symbol == b"n":
            for letter in (b"u", b"l", b"l"):
                await self.expect(letter, "a value is neither a string nor null")
            return ""
        if symbol != b'"':
            raise _malformed("a value is neither a string nor null")
        return await self.text()

    async def string_pieces(self) -> AsyncIterator[bytes]:
        """The rest of a long string of ASCII characters, after its opening quote, without its escapes."""
        async for piece in self._raw_pieces():
            # Some encoders escape "/", "+" and line breaks. Latin-1, since what is not ASCII may be cut in two.
            yield _unescape(piece.decode("latin-1")).encode() if b"\\" in piece else piece

    async def _raw_pieces(self) -> AsyncIterator[bytes]:
        """Pieces of a string up to its closing quote, in which no escape is cut in two."""
        while True:
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
                raise _malformed("a string has a bad escape")
            elif not await self._next_chunk():
                raise _malformed("a string has no end")

    async def _next_chunk(self) -> bool:
        rest = self._chunk[self._position :]
        async for chunk in self._chunks:
            self._received += len(chunk)
            if self._received > self._limits.max_request_bytes:
                raise request_too_large(self._limits)
            self._chunk, self._position = rest + chunk, 0
            return True
        return False


def _unescape(raw: str) -> str:
    try:
        text: str = json.loads(f'"{raw}"', strict=False)
    except ValueError as exc:
        raise _malformed("a string has a bad escape") from exc
    # A lone surrogate is valid JSON, but cannot be encoded.
    return text.encode(errors="replace").decode()
