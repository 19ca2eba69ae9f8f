"""A request's body as uploads, read as a stream."""

from collections.abc import AsyncGenerator, AsyncIterator

import anyio
from starlette.requests import Request

from gateway import metrics
from gateway.api.exchange import Exchange
from gateway.api.schemas import PredictParameters
from gateway.errors import InvalidParameter, NoFiles, UnknownField, UnsupportedMediaType, UploadTimeout
from gateway.inference.admission import Buffer
from gateway.inference.request import Uploads
from gateway.ingest.body import read_body, read_json
from gateway.ingest.multipart import Parameter, read_multipart
from gateway.ingest.upload import Upload, file_too_large, request_too_large
from gateway.ingest.upload_limits import Limits
from gateway.settings import Settings

NO_FILES = "The request has no files: send them as multipart/form-data, such as curl -F files=@cat.jpg."


async def chunks(request: Request, exchange: Exchange, settings: Settings, buffer: Buffer) -> AsyncIterator[bytes]:
    """The body, chunk by chunk; only the client's time counts, not the time for which the gateway does not read.

    Raises UploadTimeout after `upload_idle_timeout_seconds` of silence or `upload_timeout_seconds` in all, and
    Overloaded where the process holds too many bytes of uploads.
    """
    stream = request.stream()
    left_seconds = settings.upload_timeout_seconds
    while True:
        wait_seconds = min(left_seconds, settings.upload_idle_timeout_seconds)
        started = anyio.current_time()
        try:
            with anyio.fail_after(wait_seconds):
                chunk = await anext(stream, b"")
        except TimeoutError as exc:
            limit = "upload_timeout_seconds" if wait_seconds == left_seconds else "upload_idle_timeout_seconds"
            value = getattr(settings, limit)
            raise UploadTimeout(
                f"The body did not arrive in time: the limit {limit} is {value:g} s.", limit=limit, value=value
            ) from exc
        if not chunk:
            exchange.body_read.set()
            return
        left_seconds = max(0.001, left_seconds - (anyio.current_time() - started))
        exchange.tally.received_bytes += len(chunk)
        metrics.BYTES_RECEIVED.inc(len(chunk))
        buffer.grow(len(chunk))
        yield chunk


def announced_bytes(request: Request) -> int:
    """The length of the body as its headers say, 0 where they do not."""
    return int(request.headers.get("content-length", "0"))


async def open_uploads(
    request: Request, exchange: Exchange, settings: Settings, limits: Limits, buffer: Buffer
) -> tuple[dict[str, list[str]], Uploads]:
    """Read up to the first file: the form's parameters, and the uploads as they will arrive.

    Raises UnsupportedMediaType, and what the readers of gateway.ingest raise, without reading a body that announces
    itself as too large; so does the iterator, which also raises NoFiles at the end of a body without one.
    """
    body = chunks(request, exchange, settings, buffer)
    content_type = request.headers.get("content-type", "")
    media_type = content_type.partition(";")[0].strip().lower()
    raw = media_type.startswith("image/") or media_type == "application/octet-stream"
    if not raw and media_type not in {"multipart/form-data", "application/json"}:
        raise UnsupportedMediaType(
            f"Send multipart/form-data with files, one raw image as image/*, or application/json; not "
            f"{media_type[:80]!r}."
            if media_type
            else "The request has no Content-Type: send multipart/form-data with files, or one raw image as image/*."
        )
    if raw and announced_bytes(request) > limits.max_file_bytes:
        raise file_too_large(limits)
    if announced_bytes(request) > limits.max_request_bytes:
        raise request_too_large(limits)
    if raw:
        return {}, counted(_one(body, limits), buffer)
    if media_type == "application/json":
        return {}, counted(read_json(body, limits), buffer)
    return await _split(read_multipart(body, content_type, limits), buffer)


async def _split(parts: AsyncIterator[Upload | Parameter], buffer: Buffer) -> tuple[dict[str, list[str]], Uploads]:
    parameters: dict[str, list[str]] = {}
    async for part in parts:
        if isinstance(part, Upload):
            return parameters, counted(resumed(part, _files(parts)), buffer)
        if part.name not in PredictParameters.model_fields:
            raise UnknownField(
                f"The form field {part.name!r} has no file name and is no parameter; parameters are "
                f"{', '.join(PredictParameters.model_fields)}."
            )
        parameters.setdefault(part.name, []).append(part.value)
    raise NoFiles(NO_FILES)


async def resumed(first: Upload, rest: AsyncIterator[Upload]) -> AsyncGenerator[Upload, None]:
    """Uploads of which the first was read before."""
    yield first
    async for upload in rest:
        yield upload


async def _files(rest: AsyncIterator[Upload | Parameter]) -> AsyncIterator[Upload]:
    async for part in rest:
        if isinstance(part, Parameter):
            raise InvalidParameter(f"The form field {part.name!r} must stand before the first file.")
        yield part


async def _one(body: AsyncIterator[bytes], limits: Limits) -> AsyncIterator[Upload]:
    yield Upload(0, "", await read_body(body, limits), None)


async def counted(
    uploads: AsyncIterator[Upload], buffer: Buffer, no_files: str = NO_FILES
) -> AsyncGenerator[Upload, None]:
    """Uploads whose bytes leave the buffer as they start their way; raises NoFiles where there are none."""
    empty = True
    async for upload in uploads:
        empty = False
        yield upload
        buffer.clear()  # asked for the next: this one is on its way, or refused
    if empty:
        raise NoFiles(no_files)
