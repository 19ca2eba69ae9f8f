"""Base64 that arrives in pieces (RFC 4648)."""

import binascii

from gateway.errors import ImageError, InvalidImage
from gateway.ingest.upload import Hold, Limits, file_too_large, uncounted
from gateway_plugins.shared.json_source import JsonSource

_WHITESPACE = b" \t\r\n"
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_MAX_PREFIX_BYTES = 256


class Base64Decoder:
    """Decodes pieces of base64 into `data`, which never grows beyond `max_bytes`: then `too_large` is set.

    Takes both alphabets, line breaks, missing padding and a leading `data:…;base64,`; anything else sets `invalid`.
    After either, further pieces are ignored.
    """

    def __init__(self, max_bytes: int) -> None:
        self.data = bytearray()
        self.too_large = False
        self.invalid = False
        self._max_bytes = max_bytes
        self._carry = b""
        self._padding = 0
        self._at_start = True

    def write(self, piece: bytes) -> None:
        """Take the next piece, of any length."""
        if self.too_large or self.invalid:
            return
        if self._padding:
            more = piece.translate(None, _WHITESPACE)
            self._padding += len(more)
            self.invalid = bool(more.strip(b"="))
            return
        piece = self._carry + piece
        if self._at_start:
            if b"data:".startswith(piece[:5]):
                prefix, comma, piece = piece.partition(b",")
                if not comma:
                    self._carry = prefix
                    self.invalid = len(prefix) > _MAX_PREFIX_BYTES
                    return
                self.invalid = not prefix.endswith(b";base64")
            self._at_start = False
        if not self._take(piece) and not self._take(self._clean(piece)):
            self.invalid = True

    def finish(self) -> None:
        """Decode the remaining digits after the last piece."""
        if self.too_large or self.invalid:
            return
        digits = self._clean(self._carry)
        missing = -len(digits) % 4
        # One digit left over holds six bits, less than a byte.
        if missing == 3 or self._padding not in (0, missing) or (self._at_start and digits):
            self.invalid = True
        elif digits:
            self.invalid = not self._take(digits + b"AA"[:missing], surplus=missing)

    def _clean(self, piece: bytes) -> bytes:
        cleaned = piece.translate(_URL_SAFE, _WHITESPACE)
        digits = cleaned.rstrip(b"=")
        self._padding += len(cleaned) - len(digits)
        return digits

    def _take(self, digits: bytes, surplus: int = 0) -> bool:
        """Decode whole groups of four digits and carry the rest; False, without effect, if it has other characters."""
        cut = len(digits) - len(digits) % 4
        try:
            decoded = binascii.a2b_base64(digits[:cut])
        except binascii.Error:
            return False
        # The function skips other characters, and then the result is shorter.
        if len(decoded) != cut // 4 * 3:
            return False
        self._carry = digits[cut:]
        self.too_large = len(self.data) + len(decoded) - surplus > self._max_bytes
        if self.too_large:
            self.data = bytearray()
        else:
            self.data += decoded[: len(decoded) - surplus]
        return True


async def read_base64(source: JsonSource, limits: Limits, hold: Hold = uncounted) -> tuple[bytes, ImageError | None]:
    """Read an image in base64, after the opening quote of its string: its bytes, or b"" and what is wrong with it."""
    decoder = Base64Decoder(limits.max_file_bytes)
    async for piece in source.string_pieces():
        decoder.write(piece)
        hold(len(decoder.data))
    decoder.finish()
    if decoder.too_large:
        return b"", file_too_large(limits)
    if decoder.invalid:
        return b"", InvalidImage("The image is not base64.")
    return bytes(decoder.data), None
