"""One request to `POST /predict` or `POST /embed`, and its answer line by line."""

import json
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import httpx

from .batches import Loaded
from .errors import BY_CODE, GatewayError, ServiceError
from .faults import ConnectionLost, UnexpectedAnswer

NDJSON = "application/x-ndjson"
_PASSING_STATUSES = frozenset({429, 502, 503, 504})


class Refused(ServiceError):
    """Something between here and the gateway refused the request for now; its status says why."""

    code = "refused"
    retryable = True


def multipart(batch: Sequence[Loaded]) -> tuple[bytes, str]:
    """A body after RFC 7578 with a file for each picture, named by its number, and the Content-Type."""
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
    return b"".join(parts), f"multipart/form-data; boundary={boundary}"


async def lines(
    http: httpx.AsyncClient, path: str, batch: Sequence[Loaded], parameters: Mapping[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    """Send pictures, and yield the line of each result as it arrives; its `index` counts the batch.

    Raises the GatewayError that befell the whole request, and ConnectionLost.
    """
    body, content_type = multipart(batch)
    headers = {"Accept": NDJSON, "Content-Type": content_type}
    try:
        async with http.stream("POST", path, params=parameters, content=body, headers=headers) as response:
            if response.status_code != httpx.codes.OK:
                await response.aread()
                raise error_of(response)
            if not response.headers.get("Content-Type", "").startswith(NDJSON):
                raise UnexpectedAnswer(f"{response.url} does not answer like a gateway; is the URL right?")
            async for line in response.aiter_lines():
                document = json.loads(line)
                if "index" in document:
                    yield document
                elif isinstance(document.get("error"), dict):
                    raise error_from(document["error"], response)
    except (httpx.TransportError, httpx.StreamError, json.JSONDecodeError) as exc:
        raise ConnectionLost(f"The connection was lost: {exc or type(exc).__name__}.") from exc


def error_of(response: httpx.Response) -> GatewayError:
    """The error of an answer that is none of a picture's; its body has been read."""
    try:
        document = response.json()
    except ValueError:
        document = None
    if isinstance(document, dict) and isinstance(document.get("code"), str):
        return error_from(document, response)
    if response.status_code in _PASSING_STATUSES:
        return Refused(
            f"The request was refused with status {response.status_code}.",
            code=f"http_{response.status_code}",
            status=response.status_code,
            retry_after_seconds=_retry_after(response),
        )
    return UnexpectedAnswer(
        f"{response.url} answers with status {response.status_code} and without a reason; is the URL right?",
        status=response.status_code,
    )


def error_from(document: Mapping[str, Any], response: httpx.Response | None = None) -> GatewayError:
    """A problem document (RFC 9457), or the error of one picture, as the type of its code."""
    code = str(document.get("code"))
    known = {"type", "title", "status", "code", "detail", "message", "request_id"}
    return BY_CODE.get(code, GatewayError)(
        str(document.get("detail") or document.get("message") or code),
        code=code,
        status=document.get("status"),
        request_id=document.get("request_id"),
        retry_after_seconds=None if response is None else _retry_after(response),
        details={name: value for name, value in document.items() if name not in known},
    )


def _retry_after(response: httpx.Response) -> float | None:
    try:
        return max(0.0, float(response.headers["Retry-After"]))
    except (KeyError, ValueError):
        return None
