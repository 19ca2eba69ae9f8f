"""A streaming reader of multipart/form-data (RFC 7578) that yields each file when its last byte has arrived.

The package `multipart` finds the boundaries and the lines of headers; this module decides which parts are accepted and
how many bytes of them are held.
"""

import re
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from copy import copy
from urllib.parse import unquote_to_bytes

from multipart import (
    MultipartError,
    MultipartSegment,
    ParserLimitReached,
    PushMultipartParser,
    parse_content_disposition,
    parse_options_header,
)

from gateway.errors import HeadersTooLarge, InvalidMultipart, clear_frames
from gateway.ingest.upload import (
    Hold,
    Parameter,
    Upload,
    UploadLimits,
    clean_filename,
    uncounted,
)
from gateway.timing import TimeSlice
from gateway.values.quantities import size

MAX_BOUNDARY_CHARACTERS = 70
IDENTITY_ENCODINGS = frozenset({"", "binary", "7bit", "8bit"})
# RFC 5987. RFC 7578 rules it out in forms, but clients send it for names beyond ASCII.
_EXTENDED = re.compile(r";[ \t]*filename\*[ \t]*=[ \t]*([\w-]*)'[^']*'([^;\s]+)", re.IGNORECASE)
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)

# Browsers percent-encode three characters. A name with other escapes, as aiohttp writes them, stays as it is.
_OTHER_ESCAPE = re.compile(r"%(?!22|0D|0A)[0-9A-Fa-f]{2}")


def boundary_of(content_type: str) -> bytes:
    """The boundary in the Content-Type of a request; raises InvalidMultipart."""
    media_type, params = parse_options_header(content_type)
    boundary: str = params.get("boundary", "")
    if media_type != "multipart/form-data":
        raise InvalidMultipart("The Content-Type of the request is not multipart/form-data.")
    # RFC 2046 section 5.1.1
    if not 0 < len(boundary) <= MAX_BOUNDARY_CHARACTERS or not boundary.isascii() or not boundary.isprintable():
        raise InvalidMultipart("The Content-Type has no valid boundary parameter of 1 to 70 characters.")
    return boundary.encode()


def names_of(headerlist: Iterable[tuple[str, str]]) -> tuple[str, str | None]:
    """Check the headers of a part, whose names are in title case; returns its field name and its file name.

    Their bytes are decoded as Latin-1. The field name is empty for a file without one, and the file name None where the
    part is not a file. Raises InvalidMultipart.
    """
    headers: dict[str, str] = {}
    for header, value in headerlist:
        if header in headers:
            raise InvalidMultipart(f"A part has more than one {header} header.")
        headers[header] = value.encode("latin-1").decode(errors="replace")
    value = headers.get("Content-Disposition", "")
    if _OTHER_ESCAPE.search(value):
        disposition, params = parse_options_header(value)
        name, filename = params.get("name"), params.get("filename")
    else:
        disposition, name, filename = parse_content_disposition(value)
    if "*" in value and (extended := _EXTENDED.search(_QUOTED.sub("", value))):
        charset, encoded = extended.groups()
        codec = "latin-1" if charset.lower() == "iso-8859-1" else "utf-8"
        filename = unquote_to_bytes(encoded).decode(codec, errors="replace")
    content_type = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if disposition != "form-data":
        raise InvalidMultipart("A part has no Content-Disposition: form-data header.")
    if content_type.startswith("multipart/"):
        raise InvalidMultipart("Nested multipart bodies are not accepted: send each file as a separate part.")
    if headers.get("Content-Transfer-Encoding", "").strip().lower() not in IDENTITY_ENCODINGS:
        raise InvalidMultipart("Content-Transfer-Encoding is not accepted (RFC 7578 section 4.7): send the bytes.")
    if name is None and filename is None:
        raise InvalidMultipart("A part has neither a name nor a filename.")
    return name or "", filename


MAX_READ_AHEAD_BYTES = 64 * 1024
"""A form with at most this many bytes besides its first file is read completely before that file is yielded."""
MAX_PARAMETERS = 100
PIECE_BYTES = 16 * 1024
"""A piece of a file of at least this size is kept as it is until the file is complete."""
MAX_PARAMETER_BYTES = 8 * 1024
MAX_PART_HEADERS, MAX_PART_HEADER_BYTES = 32, 16 * 1024


async def read_multipart(
    chunks: AsyncIterable[bytes],
    content_type: str,
    limits: UploadLimits,
    hold: Hold = uncounted,
    announced_bytes: int = 0,
) -> AsyncIterator[Upload | Parameter]:
    """Yield the files and fields of a multipart/form-data body, in order, each as soon as it is complete.

    A part with a filename is a file, under any field name; an empty file picker (`filename=""` and no bytes) is
    skipped. A file beyond `max_file_bytes` is drained and yielded with its error.

    At most one file is held, or all of them if `announced_bytes`, the Content-Length, leaves MAX_READ_AHEAD_BYTES or
    less for the rest of the form: then all fields are yielded before all files, so that they may follow the files.

    Raises InvalidMultipart, HeadersTooLarge, TooManyFiles or RequestTooLarge, after the parts before the fault.
    """
    form = _Form(boundary_of(content_type), limits)
    time_slice = TimeSlice()
    received = kept_bytes = 0
    kept: deque[Upload] = deque()
    reads_ahead = announced_bytes > 0
    async for chunk in chunks:
        received += len(chunk)
        if received > limits.max_request_bytes:
            raise limits.request_too_large()
        for part in form.feed(chunk):
            if isinstance(part, Upload):
                reads_ahead = bool(kept) or (reads_ahead and announced_bytes - len(part.data) <= MAX_READ_AHEAD_BYTES)
                if reads_ahead:
                    kept.append(part)
                    kept_bytes += len(part.data)
                    continue
                hold(len(part.data))
            yield part
            del part  # nothing counts its bytes while the next one arrives
            if time_slice.is_over:
                await time_slice.pause()
        hold(kept_bytes + form.held_bytes)
        if time_slice.is_over:
            await time_slice.pause()
    form.end()
    while kept:
        kept_bytes -= len(kept[0].data)
        yield kept.popleft()
        hold(kept_bytes)


class _Parser(PushMultipartParser):  # type: ignore[misc]  # the package has no types
    """The package's parser, with parts that have no name: for them a filename suffices."""

    def _create_segment(self, headerlist: list[tuple[str, str]]) -> MultipartSegment:
        # Subclasses may override this method, by its documentation. The segment parses no header: `_begin` does.
        segment = MultipartSegment([])
        segment.headerlist = headerlist
        return segment


def _is_complete(parser: _Parser) -> bool:
    """Close a parser; whether it has read the closing boundary, which it reports only then."""
    try:
        parser.close()
    except MultipartError as exc:
        # Otherwise the error would keep its frames, and these the error, until a full garbage collection.
        clear_frames(exc)
        parser.error = None
        return False
    return True


class _Form:
    """Turns the chunks of a body into its parts."""

    def __init__(self, boundary: bytes, limits: UploadLimits) -> None:
        # Not strict, it joins folded headers, line by line, in quadratic time. Header bytes are decoded by `_begin`.
        self._parser = _Parser(
            boundary,
            max_header_size=MAX_PART_HEADER_BYTES,
            max_header_count=MAX_PART_HEADERS,
            header_charset="latin-1",
            strict=True,
        )
        self._limits = limits
        self._most_unparsed_bytes = MAX_PART_HEADER_BYTES + len(boundary) + len(b"\r\n----\r\n")
        self._unparsed_bytes = 0
        """Bytes since the parser last reported headers, data or the end of a part."""
        self._files = 0
        self._others = 0
        self._in_part = False
        # The state of the current part:
        self._name: str
        self._filename: str | None
        self._too_large: bool
        self._counted: bool
        self._pieces: list[bytes | bytearray] = []
        """Received bytes of the incomplete part: large pieces as they are, small ones joined."""
        self.held_bytes = 0
        self._may_have_ended = self._has_ended = False

    def feed(self, chunk: bytes) -> Iterator[Upload | Parameter]:
        """Yield the parts that end in this chunk; what follows the closing boundary is ignored."""
        if self._may_have_ended:
            self._has_ended = self._has_ended or _is_complete(copy(self._parser))
            if self._has_ended:
                return
        self._unparsed_bytes += len(chunk)
        try:
            for event in self._parser.parse(chunk):
                self._unparsed_bytes = 0
                if isinstance(event, MultipartSegment):
                    self._begin(event.headerlist)
                elif event is not None:
                    self._add(event)
                elif (part := self._end()) is not None:
                    yield part
        except ParserLimitReached as exc:
            raise self._headers_too_large() from exc
        except MultipartError as exc:
            raise InvalidMultipart(
                "The multipart body is malformed: a boundary or a part's header is damaged."
            ) from exc
        self._may_have_ended = not self._in_part
        if self._unparsed_bytes > self._most_unparsed_bytes:
            raise self._headers_too_large()

    def end(self) -> None:
        """The body has ended; raises InvalidMultipart without its closing boundary."""
        if not (self._has_ended or _is_complete(self._parser)):
            raise InvalidMultipart("The multipart body ends without its closing boundary.")

    def _begin(self, headerlist: list[tuple[str, str]]) -> None:
        """Check the headers of a part; their names are in title case."""
        if len("".join(map("%s: %s\r\n".__mod__, headerlist))) > MAX_PART_HEADER_BYTES:
            raise self._headers_too_large()
        self._name, self._filename = names_of(headerlist)
        self._in_part = True
        self._too_large = self._counted = False
        if self._filename:
            self._count_file()

    def _add(self, data: bytes) -> None:
        """Add bytes to the part, unless it is a file beyond its limit."""
        length = self.held_bytes + len(data)
        if self._filename is None:
            if length > MAX_PARAMETER_BYTES:
                name = clean_filename(self._name)
                raise InvalidMultipart(
                    f"The field {name!r} has more than {size(MAX_PARAMETER_BYTES)}; a file's part must have a filename."
                )
        elif not self._counted:
            self._count_file()
        if self._too_large or length > self._limits.max_file_bytes:
            self._too_large = True
            self._pieces, self.held_bytes = [], 0
            return
        self.held_bytes = length
        if len(data) >= PIECE_BYTES or not self._pieces:
            self._pieces.append(data)
        elif isinstance(self._pieces[-1], bytearray):
            self._pieces[-1] += data
        else:
            self._pieces.append(bytearray(data))

    def _end(self) -> Upload | Parameter | None:
        """The complete part; None for a file picker that was left empty."""
        pieces, self._pieces, self.held_bytes, self._in_part = self._pieces, [], 0, False
        data = b"".join(pieces)
        if self._counted:
            error = self._limits.file_too_large() if self._too_large else None
            return Upload(self._files - 1, clean_filename(self._filename or ""), data, error)
        self._others += 1
        if self._others > MAX_PARAMETERS:
            raise InvalidMultipart(f"The form has more than {MAX_PARAMETERS} fields that are no files.")
        return None if self._filename is not None else Parameter(self._name, data.decode(errors="replace"))

    def _count_file(self) -> None:
        self._counted = True
        self._files += 1
        if self._files > self._limits.max_files:
            raise self._limits.too_many_files()

    def _headers_too_large(self) -> HeadersTooLarge:
        limit = MAX_PART_HEADER_BYTES
        return HeadersTooLarge(
            f"A part has more than {size(limit)} of headers, or more than {MAX_PART_HEADERS} headers.",
            limit="max_part_header_bytes",
            value=limit,
        )
