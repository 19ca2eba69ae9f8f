"""The body of a request as it arrives, and its upload timeouts."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from typing import Self, TypeVar, cast

from starlette.requests import ClientDisconnect, Request

from gateway import metrics
from gateway.api.request_context import RequestContext
from gateway.errors import (
    InvalidImage,
    InvalidParameter,
    NoFiles,
    Overloaded,
    RequestTooLarge,
    UnknownField,
    UnsupportedMediaType,
    UploadTimeout,
)
from gateway.ingest.multipart import read_multipart
from gateway.ingest.upload import (
    BodyReader,
    Form,
    Hold,
    Parameter,
    Upload,
    UploadLimits,
    UploadReference,
    Uploads,
    UploadsOrUrls,
    uncounted,
)
from gateway.limits.pools import MIN_UPLOAD_BYTES_PER_SECOND, Pace, PoolLease, Uploader
from gateway.values.clients import address_of, client_of
from gateway.values.quantities import size
from gateway.values.validation import NAME_CHARACTERS, near

NO_FILES = "The request has no files: send them as multipart/form-data, such as curl -F files=@cat.jpg."
FORM = "application/x-www-form-urlencoded"
FORM_ADVICE = ", as curl -d does: write curl -F files=@cat.jpg"


class Body:
    """The chunks of a request's body. Its buffered bytes are counted until the request ends.

    Creating it raises UnsupportedMediaType if the body is compressed. Timeouts exclude the time in which the gateway
    does not read.

    The iteration raises UploadTimeout if the client is `upload_idle_timeout_seconds` behind the lowest speed, or after
    `upload_timeout_seconds` in total, ClientDisconnect, and Overloaded if the full upload buffer evicts this upload.
    """

    def __init__(self, request: Request, context: RequestContext) -> None:
        self.headers: dict[bytes, bytes] = dict(reversed(request.scope["headers"]))
        """The headers of the request by their names in lower case; the first one of a name counts."""
        if self.headers.get(b"content-encoding", b"").lower() not in {b"", b"identity"}:
            raise UnsupportedMediaType.encoded()
        self._content_type = self.headers.get(b"content-type", b"").decode("latin-1")
        self._media_type = self._content_type.partition(";")[0].strip().lower()
        self.announced_bytes = int(self.headers.get(b"content-length", b"0"))
        """The Content-Length, 0 without one."""
        self._request, self._context = request, context
        self._limits = context.service.limits
        self._settings = context.settings
        self._stats = context.stats
        self.pace = Pace(
            min_bytes_per_second=MIN_UPLOAD_BYTES_PER_SECOND,
            grace_seconds=self._settings.upload_idle_timeout_seconds,
            now=time.monotonic,
        )
        self._eviction: Overloaded | None = None
        self._receiving: asyncio.Timeout | None = None
        self._readers = context.runtime.body_readers
        self.reader: BodyReader | None = self._readers.get(self._media_type)
        """The plug-in's reader of this body's media type; None if the core reads it."""
        self._fetchers = context.runtime.fetchers
        lease = PoolLease(context.runtime.uploads, Uploader(self.pace, self._evict), context.caller.upload_bytes)
        context.leases.append(lease)
        self.hold = lease.hold
        """Called by readers with the number of bytes of the body that they hold."""
        self._left_seconds = self._settings.upload_timeout_seconds
        self._ended = False
        """Whether the last byte was received."""
        self._end = asyncio.Event()

    async def open_uploads(self, names: Sequence[str]) -> tuple[Form, Uploads]:
        """Read up to the first file: the parameters, which must be among `names`, and the uploads as they arrive.

        Raises UnsupportedMediaType, NoFiles, and the errors of the media type's reader, which reading the uploads
        raises as well. A body is not read if its Content-Length exceeds a limit.
        """
        media_type, announced_bytes, limits, reader = self._media_type, self.announced_bytes, self._limits, self.reader
        # A body without a type is an image as well: clients that send bytes or an open file often add none.
        raw = media_type.startswith("image/") or media_type == "application/octet-stream"
        raw = raw or (not self._content_type and announced_bytes > 0)
        if not raw and reader is None and media_type != "multipart/form-data":
            raise self._unsupported()
        if raw and announced_bytes > limits.max_file_bytes:
            raise limits.file_too_large()
        if announced_bytes > limits.max_request_bytes:
            raise limits.request_too_large()
        parts: AsyncIterator[Upload | UploadReference | Parameter]
        if raw:
            parts = read_raw(self, limits, self.hold)
        elif reader is not None:
            parts = reader(self, limits, names, self.hold, urls=bool(self._fetchers))
        else:
            parts = read_multipart(self, self._content_type, limits, self.hold, announced_bytes)
        parameters: Form = {}
        async for part in parts:
            if not isinstance(part, Parameter):
                images = uploads_from(part, parts, names)
                fetches = reader is not None and self._fetchers
                return parameters, self._fetched(images) if fetches else cast("Uploads", images)
            _check_known(part, names)
            parameters.setdefault(part.name, []).append(part.value)
        raise NoFiles(NO_FILES)

    async def _fetched(self, images: UploadsOrUrls) -> Uploads:
        """The images of a request, with uploads in place of references."""
        client = client_of(self._context.log_fields.get("key", ""), address_of(self._request.scope))
        for fetch in self._fetchers:
            images = fetch(images, key_bound=self._context.caller.upload_bytes, client=client)
        async with aclosing(images):
            async for image in images:
                if isinstance(image, Upload):
                    yield image
                else:
                    error = InvalidImage("No plug-in of this service fetches this URL.")
                    yield Upload(image.index, image.filename, b"", error)

    def _unsupported(self) -> UnsupportedMediaType:
        media_type = self._media_type
        others = "".join(f", or {each}" for each in self._readers)
        return UnsupportedMediaType(
            f"Send multipart/form-data with files, one raw image as image/*{others}; not "
            f"{media_type[:80]!r}{FORM_ADVICE if media_type == FORM else ''}."
            if media_type
            else "The request has no Content-Type: send multipart/form-data with files, or one raw image as image/*: "
            "requests.post(url, files={'files': file})."
        )

    async def read_whole(self, most: int, limit: str) -> bytes:
        """The whole body, of at most `most` bytes, which are counted; raises RequestTooLarge, which names `limit`."""
        pieces: list[bytes] = []
        nbytes, held = self.announced_bytes, 0
        while nbytes <= most:
            piece = await anext(self, None)
            if piece is None:
                return b"".join(pieces)
            pieces.append(piece)
            held += len(piece)
            self.hold(held)
            nbytes = max(nbytes, held)
        raise RequestTooLarge(f"The body may have at most {most:,} bytes.", limit=limit, value=most)

    async def wait_for_disconnect(self) -> None:
        """Wait until the client disconnects, and raise ClientDisconnect.

        Before the body's last byte, its reader notices a disconnect: two tasks must not call `receive` concurrently.
        """
        if not self._ended:
            await self._end.wait()
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        raise ClientDisconnect

    def _evict(self, error: Overloaded) -> None:
        """Make the read in progress, or the next one, raise the error."""
        self._eviction = error
        if self._receiving is not None:
            with suppress(RuntimeError):  # it has ended meanwhile
                self._receiving.reschedule(0.0)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """The next chunk, which is not empty."""
        pace = self.pace
        while not self._ended:
            if self._eviction is not None:
                raise self._eviction
            started = time.monotonic()
            spare_seconds = pace.wait()
            try:
                async with asyncio.timeout(min(self._left_seconds, spare_seconds)) as timeout:
                    self._receiving = timeout
                    message = await self._request.receive()
            except TimeoutError:
                raise self._eviction or self._timed_out(too_slow=spare_seconds < self._left_seconds) from None
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunk: bytes = message.get("body", b"")
            pace.receive(len(chunk))
            self._left_seconds = max(0.001, self._left_seconds - (time.monotonic() - started))
            if not message.get("more_body", False):
                self._ended = True
                self._end.set()
            if chunk:
                self._stats.received_bytes += len(chunk)
                metrics.BYTES_RECEIVED.inc(len(chunk))
                return chunk
        raise StopAsyncIteration

    def _timed_out(self, *, too_slow: bool) -> UploadTimeout:
        limit, value = "upload_timeout_seconds", self._settings.upload_timeout_seconds
        sentence = f"The body did not arrive in time: the limit {limit} is {value:g} s."
        if too_slow:
            limit, value = "min_upload_bytes_per_second", MIN_UPLOAD_BYTES_PER_SECOND
            behind_seconds = self._settings.upload_idle_timeout_seconds
            sentence = f"The body must arrive at {size(value)} a second; it is {behind_seconds:g} s behind."
        return UploadTimeout(sentence, limit=limit, value=value)


U = TypeVar("U", bound=Upload | UploadReference)


async def read_raw(chunks: AsyncIterable[bytes], limits: UploadLimits, hold: Hold = uncounted) -> Uploads:
    """Yield one raw image; raises FileTooLarge beyond `max_file_bytes`, as the error of the whole request."""
    body = bytearray()
    async for chunk in chunks:
        if len(body) + len(chunk) > limits.max_file_bytes:
            raise limits.file_too_large()
        body += chunk
        hold(len(body))
    data = bytes(body)
    del body
    yield Upload(0, "", data)
    hold(0)


def _check_known(part: Parameter, names: Sequence[str]) -> None:
    if part.name not in names:
        hint = near(part.name, names) or "a file has one, such as curl -F files=@cat.jpg."
        raise UnknownField(
            f"The form field {part.name[:NAME_CHARACTERS]!r} has no file name and is not a parameter; {hint} "
            f"Parameters are {', '.join(names)}."
        )


async def uploads_from(
    first: U, rest: AsyncIterator[U | Parameter], names: Sequence[str] | None = None
) -> AsyncGenerator[U, None]:
    """Yield uploads of which the first was read before.

    Raises InvalidParameter for a parameter between them, and UnknownField for one that is not in `names`.
    """
    yield first
    del first  # as each part below: nothing counts its bytes while the next one arrives
    async for part in rest:
        if isinstance(part, Parameter):
            if names is not None:
                _check_known(part, names)
            raise InvalidParameter(
                f"The form field {part.name!r} comes after files that are being classified already: send it before "
                f"the first file, or in the query, such as ?{part.name}=…."
            )
        yield part
        del part
