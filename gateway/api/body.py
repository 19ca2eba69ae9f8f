"""The body of a request as it arrives, and its upload timeouts."""

from collections.abc import Sequence
from typing import Self

import anyio
from starlette.requests import ClientDisconnect, Request

from gateway import metrics
from gateway.api.request_context import RequestContext, request_context
from gateway.api.state import state
from gateway.errors import GatewayError, UnsupportedMediaType, UploadTimeout, UploadTooSlow
from gateway.ingest.media_types import Form, Uploads, open_uploads
from gateway.ingest.upload_limits import Limits
from gateway.limits.pace import Pace
from gateway.limits.upload_buffer import HeldBytes
from gateway.settings import Settings


async def open_files(request: Request, limits: Limits, names: Sequence[str]) -> tuple[Form, Uploads]:
    """Read a body up to its first file: see gateway.ingest.media_types.open_uploads."""
    content_type, body = request.headers.get("content-type", ""), open_body(request)
    return await open_uploads(content_type, announced_bytes(request), body, limits, names, body.hold)


def open_body(request: Request) -> "Body":
    """The body of a request; its buffered bytes are counted until the request ends.

    Raises UnsupportedMediaType if the body is compressed.
    """
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMediaType.encoded()
    parts, current = state(request), request_context(request)
    settings = parts["settings"]
    pace = Pace(
        min_bytes_per_second=settings.min_upload_bytes_per_second,
        grace_seconds=settings.upload_grace_seconds,
        now=anyio.current_time,
    )
    return Body(request, current, settings, current.resources.enter_context(parts["uploads"].open(pace)))


class Body:
    """The chunks of a body. Timeouts exclude the time in which the gateway does not read.

    The iteration raises UploadTimeout after `upload_idle_timeout_seconds` without data or `upload_timeout_seconds` in
    total, UploadTooSlow, ClientDisconnect, and Overloaded if the full upload buffer evicts this upload.
    """

    def __init__(
        self, request: Request, request_context: RequestContext, settings: Settings, buffer: HeldBytes
    ) -> None:
        self._request = request
        self._context = request_context
        self._settings = settings
        self._buffer = buffer
        self.hold = buffer.hold
        """Called by readers with the number of bytes of the body that they hold."""
        self._left_seconds = settings.upload_timeout_seconds
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """The next chunk, which is not empty."""
        buffer, pace = self._buffer, self._buffer.pace
        while not self._ended:
            if buffer.refusal is not None:
                raise buffer.refusal
            started = anyio.current_time()
            idle_seconds = min(self._left_seconds, self._settings.upload_idle_timeout_seconds)
            spare_seconds = pace.wait()
            with anyio.move_on_after(max(0.0, min(idle_seconds, spare_seconds))) as scope:
                buffer.on_refusal = scope.cancel
                message = await self._request.receive()
            if scope.cancelled_caught:
                raise buffer.refusal or (self._too_slow() if spare_seconds < idle_seconds else self._timed_out())
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunk: bytes = message.get("body", b"")
            pace.receive(len(chunk))
            self._left_seconds = max(0.001, self._left_seconds - (anyio.current_time() - started))
            if not message.get("more_body", False):
                self._ended = True
                self._context.body_read.set()
            if chunk:
                self._context.tally.received_bytes += len(chunk)
                metrics.BYTES_RECEIVED.inc(len(chunk))
                return chunk
        raise StopAsyncIteration

    def _too_slow(self) -> GatewayError:
        value = self._settings.min_upload_bytes_per_second
        return UploadTooSlow(
            f"The body must arrive at {value} bytes a second; it is {self._settings.upload_grace_seconds:g} s behind.",
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


def announced_bytes(request: Request) -> int:
    """The Content-Length of the body, 0 without one."""
    return int(request.headers.get("content-length", "0"))
