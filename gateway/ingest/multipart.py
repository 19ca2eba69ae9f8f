"""A streaming reader of multipart/form-data (RFC 7578) that yields each file when its last byte has arrived."""

from collections import deque
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from sys import maxsize

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, MultipartState

from gateway.errors import HeadersTooLarge, InvalidMultipart, RequestError
from gateway.ingest.header_params import form_filename, form_name, parse_header
from gateway.ingest.upload import (
    Hold,
    Upload,
    clean_filename,
    file_too_large,
    request_too_large,
    too_many_files,
    uncounted,
)
from gateway.ingest.upload_limits import Limits
from gateway.time_slices import TimeSlice

MAX_PARAMETERS = 100
MAX_PARAMETER_BYTES = 8 * 1024
MAX_BOUNDARY_CHARACTERS = 70
MAX_PART_HEADERS = 32
MAX_PADDING_BYTES = 64 * 1024
"""Blanks after boundaries and before the values of headers, in the whole body: the parser looks at each of them."""
PIECE_BYTES = 16 * 1024
"""How much is parsed at once: of the smallest parts and of false boundaries, a few milliseconds' worth."""
IDENTITY_ENCODINGS = frozenset({"", "binary", "7bit", "8bit"})


@dataclass(frozen=True, slots=True)
class Parameter:
    """A form field that is not a file."""

    name: str
    value: str


async def read_multipart(
    chunks: AsyncIterable[bytes], content_type: str, limits: Limits, hold: Hold = uncounted
) -> AsyncIterator[Upload | Parameter]:
    """Yield the files and fields of a multipart/form-data body, in order, each as soon as it is complete.

    A part with a filename is a file, whatever its field is called; an empty file picker (`filename=""` and no bytes) is
    skipped. A file beyond `max_file_bytes` is drained and yielded with its error. What is
    held is at most one file, and those that came complete in one piece.

    Raises InvalidMultipart, HeadersTooLarge, TooManyFiles or RequestTooLarge, after the parts before the fault.
    """
    assembler = _Assembler(limits)
    parser = _parser(content_type, assembler)
    cost = _Cost(assembler, parser, limits)
    turn = TimeSlice()
    received = 0
    async for chunk in chunks:
        received += len(chunk)
        if received > limits.max_request_bytes:
            raise request_too_large(limits)
        for start in range(0, len(chunk), PIECE_BYTES):
            piece = chunk[start : start + PIECE_BYTES]
            fault: Exception | None = None
            try:
                parser.write(piece)
                cost.count(piece)
            except FormParserError as exc:
                fault = InvalidMultipart("The multipart body is malformed: a boundary or a part's header is damaged.")
                fault.__cause__ = exc
            except RequestError as exc:
                fault = exc
            hold(assembler.held_bytes)
            while assembler.complete:
                yield assembler.complete.popleft()
                hold(assembler.held_bytes)
                await turn.pause_if_over()
            if fault is not None:
                raise fault
            await turn.pause_if_over()
    if parser.state != MultipartState.END:
        raise InvalidMultipart("The multipart body ends without its closing boundary.")


class _Cost:
    """Bounds what costs the parser far more than its bytes: spaces, and lines that begin like a boundary."""

    def __init__(self, assembler: "_Assembler", parser: MultipartParser, limits: Limits) -> None:
        self._assembler = assembler
        self._parser = parser
        self._delimiter = bytes(parser.boundary)
        self._most_delimiters = limits.max_files + MAX_PARAMETERS + 1
        self._delimiters = 0
        self._bytes = 0

    def count(self, piece: bytes) -> None:
        """Count a piece that was parsed; raises InvalidMultipart."""
        if self._parser.state == MultipartState.END:  # what follows is passed over
            return
        self._delimiters += piece.count(self._delimiter)
        if self._delimiters > self._most_delimiters:
            raise InvalidMultipart("The multipart body has its boundary inside of a part: choose another boundary.")
        self._bytes += len(piece)
        told = self._assembler.told_bytes + self._assembler.parts * (len(self._delimiter) + len(b"\r\n\r\n"))
        # Of the piece, a line that may yet turn out to be a boundary is not told of.
        if self._bytes - told > MAX_PADDING_BYTES + PIECE_BYTES:
            raise InvalidMultipart(f"The multipart body has more than {MAX_PADDING_BYTES} spaces around its parts.")


def _parser(content_type: str, assembler: "_Assembler") -> MultipartParser:
    try:
        media_type, params = parse_header(content_type)
    except ValueError as exc:
        raise InvalidMultipart("The Content-Type of the request is malformed.") from exc
    boundary = params.get("boundary", "")
    if media_type != "multipart/form-data":
        raise InvalidMultipart("The Content-Type of the request is not multipart/form-data.")
    # RFC 2046 section 5.1.1
    if not 0 < len(boundary) <= MAX_BOUNDARY_CHARACTERS or not boundary.isascii() or not boundary.isprintable():
        raise InvalidMultipart("The Content-Type has no valid boundary parameter of 1 to 70 characters.")
    return MultipartParser(
        boundary.encode("ascii"),
        {
            "on_part_begin": assembler.part_begin,
            "on_header_field": assembler.header_field,
            "on_header_value": assembler.header_value,
            "on_header_end": assembler.header_end,
            "on_headers_finished": assembler.headers_finished,
            "on_part_data": assembler.part_data,
            "on_part_end": assembler.part_end,
        },
        # The assembler bounds a part's headers as a whole and with an error of its own.
        max_header_count=maxsize,
        max_header_size=maxsize,
    )


class _Assembler:
    """Builds uploads and parameters out of the parser's callbacks."""

    def __init__(self, limits: Limits) -> None:
        self.complete: deque[Upload | Parameter] = deque()
        self.parts = 0
        self.told_bytes = 0
        """Of headers and data, by the parser's callbacks."""
        self._limits = limits
        self._files = 0
        self._others = 0
        self._field = bytearray()
        self._value = bytearray()
        self._headers: dict[str, str] = {}
        self._header_bytes = 0
        self._name = ""
        self._filename: str | None = None
        self._data = bytearray()
        self._too_large = False
        self._counted = False

    @property
    def held_bytes(self) -> int:
        """Bytes of files that are not taken yet."""
        return len(self._data) + sum(len(part.data) for part in self.complete if isinstance(part, Upload))

    def part_begin(self) -> None:
        self.parts += 1
        self._headers = {}
        self._header_bytes = 0
        self._data = bytearray()
        self._too_large = False

    def header_field(self, data: bytes, start: int, end: int) -> None:
        self._count_header_bytes(end - start)
        self._field += data[start:end]

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._count_header_bytes(end - start)
        self._value += data[start:end]

    def header_end(self) -> None:
        # The colon, the space and the line's end.
        self._count_header_bytes(4)
        if len(self._headers) == MAX_PART_HEADERS:
            raise HeadersTooLarge(f"A part has more than {MAX_PART_HEADERS} headers.")
        name = self._field.decode("ascii").lower()
        if name in self._headers:
            raise InvalidMultipart(f"A part has more than one {name.title()} header.")
        self._headers[name] = self._value.decode("utf-8", errors="replace")
        self._field, self._value = bytearray(), bytearray()

    def headers_finished(self) -> None:
        try:
            disposition, params = parse_header(self._headers.get("content-disposition", ""))
            content_type, _ = parse_header(self._headers.get("content-type", ""))
        except ValueError as exc:
            raise InvalidMultipart("A part has malformed parameters in its headers.") from exc
        if disposition != "form-data":
            raise InvalidMultipart("A part has no Content-Disposition: form-data header.")
        if content_type.startswith("multipart/"):
            raise InvalidMultipart("Nested multipart bodies are not taken: send each file as a part of its own.")
        if self._headers.get("content-transfer-encoding", "").strip().lower() not in IDENTITY_ENCODINGS:
            raise InvalidMultipart("Content-Transfer-Encoding is not taken (RFC 7578 section 4.7): send the bytes.")
        name, self._filename = form_name(params), form_filename(params)
        if name is None and self._filename is None:
            raise InvalidMultipart("A part has neither a name nor a filename.")
        self._name = name or ""
        self._counted = False
        if self._filename:
            self._count_file()

    def part_data(self, data: bytes, start: int, end: int) -> None:
        self.told_bytes += end - start
        length = len(self._data) + end - start
        if self._filename is None:
            if length > MAX_PARAMETER_BYTES:
                name = clean_filename(self._name)
                raise InvalidMultipart(
                    f"The field {name!r} has more than {MAX_PARAMETER_BYTES} bytes; a file's part must have a filename."
                )
        elif not self._counted:
            self._count_file()
        if self._too_large or length > self._limits.max_file_bytes:
            self._too_large = True
            self._data = bytearray()
            return
        # A view, so that the bytes are copied once.
        self._data += memoryview(data)[start:end]

    def part_end(self) -> None:
        if self._filename is None:
            self._count_other()
            self.complete.append(Parameter(self._name, self._data.decode("utf-8", errors="replace")))
            return
        if not self._counted:
            # What a browser sends for a file picker that was left empty.
            self._count_other()
            return
        error = file_too_large(self._limits) if self._too_large else None
        self.complete.append(Upload(self._files - 1, clean_filename(self._filename), bytes(self._data), error))
        self._data = bytearray()

    def _count_file(self) -> None:
        self._counted = True
        self._files += 1
        if self._files > self._limits.max_files:
            raise too_many_files(self._limits)

    def _count_other(self) -> None:
        self._others += 1
        if self._others > MAX_PARAMETERS:
            raise InvalidMultipart(f"The form has more than {MAX_PARAMETERS} fields that are no files.")

    def _count_header_bytes(self, count: int) -> None:
        self.told_bytes += count
        self._header_bytes += count
        limit = self._limits.max_part_header_bytes
        if self._header_bytes > limit:
            raise HeadersTooLarge(
                f"A part has more than {limit} bytes of headers.", limit="max_part_header_bytes", value=limit
            )
