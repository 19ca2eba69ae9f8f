"""The body of a request as it arrives, and its upload timeouts."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Self

from starlette.requests import ClientDisconnect, Request

from gateway import metrics
from gateway.api.request_context import RequestContext
from gateway.errors import (
    GatewayError,
    InvalidImage,
    Overloaded,
    RequestTooLarge,
    UnsupportedMediaType,
    UploadTimeout,
    UploadTooSlow,
)
from gateway.ingest.media_types import BodyReader, Form, Uploads, UploadsOrUrls, media_type_of, open_uploads
from gateway.ingest.upload import Limits, Upload
from gateway.limits.lease import Bound
from gateway.limits.pools import Pace, PoolLease, UploadingClient
from gateway.values.clients import address_of, client_of
from gateway.values.quantities import size

if TYPE_CHECKING:
    from gateway.hooks import Fetcher


async def _fetched(
    images: UploadsOrUrls, *, fetchers: "Sequence[Fetcher]", key_bound: Bound | None, client: str
) -> Uploads:
    """The images of a request, with uploads in place of references."""
    for fetch in fetchers:
        images = fetch(images, key_bound=key_bound, client=client)
    async with aclosing(images):
        async for image in images:
            if isinstance(image, Upload):
                yield image
            else:
                error = InvalidImage("No plug-in of this service fetches this URL.")
                yield Upload(image.index, image.filename, b"", error)


class Body(UploadingClient):
    """The chunks of a request's body. Its buffered bytes are counted until the request ends.

    Creating it raises UnsupportedMediaType if the body is compressed. Timeouts exclude the time in which the gateway
    does not read.

    The iteration raises UploadTimeout after `upload_idle_timeout_seconds` without data or `upload_timeout_seconds` in
    total, UploadTooSlow, ClientDisconnect, and Overloaded if the full upload buffer evicts this upload.
    """

    def __init__(self, request: Request, context: RequestContext) -> None:
        self.headers: dict[bytes, bytes] = dict(reversed(request.scope["headers"]))
        """The headers of the request by their names in lower case; the first one of a name counts."""
        if self.headers.get(b"content-encoding", b"").lower() not in {b"", b"identity"}:
            raise UnsupportedMediaType.encoded()
        self._content_type = self.headers.get(b"content-type", b"").decode("latin-1")
        self.announced_bytes = int(self.headers.get(b"content-length", b"0"))
        """The Content-Length, 0 without one."""
        self._request = request
        self._settings = settings = context.settings
        self._stats = context.stats
        self.pace = Pace(
            min_bytes_per_second=settings.min_upload_bytes_per_second,
            grace_seconds=settings.upload_grace_seconds,
            now=time.monotonic,
        )
        self._eviction: Overloaded | None = None
        self._receiving: asyncio.Timeout | None = None
        key_bound = context.caller.upload_bytes
        self._fetch, self._readers = None, context.shared["body_readers"]
        if fetchers := context.shared.get("fetchers"):
            client = client_of(context.log_fields.get("key", ""), address_of(request.scope))
            self._fetch = partial(_fetched, fetchers=fetchers, key_bound=key_bound, client=client)
        lease = PoolLease(context.shared["uploads"], self, key_bound)
        context.leases.append(lease)
        self.hold = lease.hold
        """Called by readers with the number of bytes of the body that they hold."""
        self._left_seconds = self._settings.upload_timeout_seconds
        self._ended = False
        """Whether the last byte was received."""
        self._end = asyncio.Event()

    @property
    def reader(self) -> BodyReader | None:
        """The plug-in's reader of this body's media type; None if the core reads it."""
        return self._readers.get(media_type_of(self._content_type))

    async def open_uploads(
        self, limits: Limits, names: Sequence[str], *, with_own: bool = False
    ) -> tuple[Form, Uploads]:
        """Read up to the first file: see gateway.ingest.media_types.open_uploads."""
        return await open_uploads(
            self._content_type,
            self.announced_bytes,
            self,
            limits,
            names,
            self.hold,
            self._fetch,
            self._readers,
            with_own=with_own,
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

        Until the last byte of the body its reader notices a disconnect; two tasks must not call `receive` at once.
        """
        if not self._ended:
            await self._end.wait()
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        raise ClientDisconnect

    def evict(self, error: Overloaded) -> None:
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
            idle_seconds = min(self._left_seconds, self._settings.upload_idle_timeout_seconds)
            spare_seconds = pace.wait()
            try:
                async with asyncio.timeout(min(idle_seconds, spare_seconds)) as timeout:
                    self._receiving = timeout
                    message = await self._request.receive()
            except TimeoutError:
                too_slow = spare_seconds < idle_seconds
                raise self._eviction or (self._too_slow() if too_slow else self._timed_out()) from None
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

    def _too_slow(self) -> GatewayError:
        value = self._settings.min_upload_bytes_per_second
        return UploadTooSlow(
            f"The body must arrive at {size(value)} a second; it is {self._settings.upload_grace_seconds:g} s behind.",
            limit="min_upload_bytes_per_second",
            value=value,
        )

    def _timed_out(self) -> GatewayError:
        idle = self._settings.upload_idle_timeout_seconds < self._left_seconds
        limit = "upload_idle_timeout_seconds" if idle else "upload_timeout_seconds"
        value = getattr(self._settings, limit)
        return UploadTimeout(
            f"The body did not arrive in time: the limit {limit} is {value:g} s.", limit=limit, value=value
        )
