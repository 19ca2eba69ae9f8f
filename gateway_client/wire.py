"""One request to `POST /predict` or `POST /embed`, and its response line by line."""

import asyncio
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import httpx

from gateway_client.batches import Loaded
from gateway_client.documents import MAX_PROBLEM_BYTES, Malformed, body_of, lines_of, parsed, reading
from gateway_client.errors import (
    SERVICE_CODES,
    GatewayError,
    ImageError,
    RequestError,
    ServiceError,
    connection_lost,
    unexpected_answer,
)
from gateway_client.files import PIECE_BYTES
from gateway_client.visible import visible

NDJSON = "application/x-ndjson"
MAX_EXTRA_LINES = 64
"""Lines that a response may have in addition to one for each image."""
MAX_MESSAGE_CHARACTERS = 2_000
MAX_LOCATION_CHARACTERS = 200
MAX_RETRY_AFTER_SECONDS = 86_400.0
"""A longer Retry-After is treated as a day."""
_CODE = re.compile(r"[a-z0-9_]{1,64}")
_PASSING_STATUSES = frozenset({429, 502, 503, 504})


def multipart(batch: Sequence[Loaded]) -> tuple[list[bytes], str]:
    """Build a multipart body (RFC 7578), one file per image, named by its number; returns parts and Content-Type."""
    boundary = secrets.token_hex(16)
    parts = []
    for number, loaded in enumerate(batch):
        parts += [
            f'--{boundary}\r\nContent-Disposition: form-data; name="files"; filename="{number}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n".encode(),
            loaded.data,
            b"\r\n",
        ]
    parts.append(f"--{boundary}--\r\n".encode())
    return parts, f"multipart/form-data; boundary={boundary}"


class ProgressTimeout:
    """A timeout of the enclosed block, restarted by `progress`; received bytes alone do not restart it.

    So a server that drips bytes, or sends 1xx responses without end, cannot block the caller.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> "ProgressTimeout":
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._timeout.__aexit__(kind, error, trace)

    def pause(self) -> None:
        """Stop the timer while the caller handles a result."""
        self._timeout.reschedule(None)

    def progress(self) -> None:
        """Restart the timer."""
        if self._seconds is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._seconds)


async def lines(
    http: httpx.AsyncClient, path: str, batch: Sequence[Loaded], parameters: Mapping[str, Any]
) -> AsyncGenerator[dict[str, Any], None]:
    """Send images, and yield the line of each result as it arrives; its `index` is the position in the batch.

    Raises the GatewayError of the whole request, also `connection_lost` and `unexpected_answer`.
    """
    parts, content_type = multipart(batch)
    headers = {"Accept": NDJSON, "Content-Type": content_type, "Content-Length": str(sum(map(len, parts)))}
    try:
        async with ProgressTimeout(http.timeout.read) as progress_timeout:
            content = _sent(parts, progress_timeout)
            async with http.stream("POST", path, params=parameters, content=content, headers=headers) as response:
                if response.status_code != httpx.codes.OK:
                    raise error_of(response, await body_of(response, MAX_PROBLEM_BYTES))
                if not response.headers.get("Content-Type", "").startswith(NDJSON):
                    raise not_a_gateway(response)
                left = len(batch) + MAX_EXTRA_LINES
                async for line in lines_of(response):
                    progress_timeout.progress()
                    left -= 1
                    if left < 0:
                        raise unexpected_answer(f"{response.url} sends more results than images.")
                    document = parsed(line)
                    if "index" in document:
                        progress_timeout.pause()
                        yield document
                        progress_timeout.progress()
                    elif (error := document.get("error")) is not None:
                        raise error_from(error, response)
    except TimeoutError as exc:
        raise connection_lost(f"The connection was lost: no progress within {http.timeout.read:g} s.") from exc
    except Malformed as exc:
        raise unexpected_answer(f"The response is not a gateway's: {exc}.") from exc
    except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL) as exc:
        raise connection_lost(f"The connection was lost: {exc or type(exc).__name__}.") from exc


async def _sent(parts: Sequence[bytes], progress_timeout: ProgressTimeout) -> AsyncIterator[bytes]:
    for part in parts:
        for begin in range(0, len(part), PIECE_BYTES):
            progress_timeout.progress()
            yield part[begin : begin + PIECE_BYTES]
    progress_timeout.progress()


def not_a_gateway(response: httpx.Response) -> ServiceError:
    """The error for a response that does not come from a gateway."""
    return unexpected_answer(
        f"{response.url} does not answer like a gateway (status {response.status_code}); is the URL right?",
        status=response.status_code,
    )


def error_of(response: httpx.Response, body: bytes) -> GatewayError:
    """The error of a whole response."""
    try:
        document = parsed(body)
        if isinstance(document.get("code"), str):
            return error_from(document, response)
    except Malformed:
        pass
    if response.is_redirect:
        location = visible(response.headers.get("Location", "")[:MAX_LOCATION_CHARACTERS])
        return unexpected_answer(
            f"{response.url} redirects to {location}, which is not followed: give that URL if it is the gateway's.",
            status=response.status_code,
        )
    if response.status_code in _PASSING_STATUSES:
        return ServiceError(
            f"The request was refused with status {response.status_code}.",
            code=f"http_{response.status_code}",
            status=response.status_code,
            retry_after_seconds=_retry_after(response),
        )
    return unexpected_answer(
        f"{response.url} answers with status {response.status_code} and no problem document; is the URL right?",
        status=response.status_code,
    )


def error_from(document: Mapping[str, Any], response: httpx.Response | None = None) -> GatewayError:
    """Convert a problem document (RFC 9457), or without `response` the error of one image; raises Malformed."""
    known = {"type", "title", "status", "code", "detail", "message", "request_id"}
    with reading():
        code = document["code"]
        if _CODE.fullmatch(code) is None:
            raise Malformed("'code' is not the code of an error")
        status = int(document.get("status") or (0 if response is None else response.status_code))
        message = str(document.get("detail") or document.get("message") or code)
        details = {name: value for name, value in document.items() if name not in known}
    kind: type[GatewayError] = ImageError if response is None else RequestError
    if code in SERVICE_CODES or status >= 500:
        kind = ServiceError
    return kind(
        message[:MAX_MESSAGE_CHARACTERS],
        code=code,
        status=status if 100 <= status < 600 else None,
        request_id=document.get("request_id"),
        retry_after_seconds=None if response is None else _retry_after(response),
        details=details,
    )


def _retry_after(response: httpx.Response) -> float | None:
    """The seconds in Retry-After, at most MAX_RETRY_AFTER_SECONDS; None for a date, which clients' clocks miss."""
    given = response.headers.get("Retry-After", "")
    if not (given.isascii() and given.isdecimal()):
        return None
    return min(float(given), MAX_RETRY_AFTER_SECONDS)
