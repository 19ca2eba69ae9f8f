"""WS /stream: frames of a video or a camera in, predictions out, for each frame and for the sequence so far."""

from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from typing import Annotated, NoReturn

import structlog
from fastapi import APIRouter, Request, WebSocket
from fastapi import Query as QueryParameter
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocketDisconnect

from gateway import metrics
from gateway.api.parameters import query_parameters, request_spec
from gateway.api.request_context import RequestContext, request_context
from gateway.api.schemas import FAULTS, Problem
from gateway.errors import GatewayError, InternalError, clear_frames
from gateway.plugins.streams.errors import UpgradeRequired
from gateway.plugins.streams.messages import error_message
from gateway.plugins.streams.options import StreamParameters
from gateway.plugins.streams.session import StreamSession
from gateway.plugins.streams.websockets import GOING_DOWN, INTERNAL, NO_ROOM, NORMAL

log = structlog.get_logger("gateway")

router = APIRouter(tags=["classify"])

SUBPROTOCOL = "gateway-stream"
"""Accepted if the client offers it; browsers close a connection if the server accepts none of the offered ones."""
OWN_CODES = 4000
"""First close code for applications (RFC 6455, section 7.4.2); an error's close code is this plus its HTTP status."""


@router.get(
    "/stream",
    summary="Classify the frames of a video or a camera, over a WebSocket",
    status_code=HTTPStatus.UPGRADE_REQUIRED,
    response_model=Problem,
    response_description="The request does not open a WebSocket.",
    responses={status: FAULTS[status] for status in (403, 404, 422, 431, 502, 503, 504)},
)
async def stream_without_upgrade(
    request: Request,
    parameters: Annotated[StreamParameters, QueryParameter()],  # noqa: ARG001
) -> NoReturn:
    """Open a WebSocket here: send each frame as a binary message, an encoded image; each result is a text message.

    docs/guides/streams.md describes the messages. Without an upgrade, the response is the error with which a stream
    would be refused, since browsers hide it from pages that open a stream, or else 426.
    """
    context = request_context(request)
    session = _session(request, context)
    await session.check_model()
    context.runtime.streams.check()
    try:
        await session.open()
    finally:
        await session.close()
    raise UpgradeRequired("Open a WebSocket here, such as ws://HOST/stream?top_k=3; see docs/guides/streams.md.")


@router.websocket("/stream")
async def stream(websocket: WebSocket) -> None:
    """Serve one stream; the middleware Errors answers the handshake with an error that comes before it."""
    context = request_context(websocket)
    session = _session(websocket, context)
    await session.check_model()
    with context.runtime.streams.lease(session, 1):
        try:
            await session.open()
            offered = websocket.scope["subprotocols"]
            await websocket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
            await _serve(websocket, session, context)
        finally:
            await session.close()


def _session(connection: HTTPConnection, context: RequestContext) -> StreamSession:
    settings = context.settings
    parameters = query_parameters(StreamParameters, connection.scope["query_string"])
    spec = request_spec(
        connection,
        context,
        model_name=parameters.model or settings.model,
        version=parameters.version,
        timeout_seconds=parameters.timeout,
        selection=None,
    )
    # A stream keeps its version, and each frame is charged.
    spec = replace(spec, split=False, paid=False)
    # A frame that cannot wait is dropped: no upload is evicted for it.
    lease = context.runtime.uploads.lease(key_bound=context.caller.upload_bytes)
    context.leases.append(lease)
    return StreamSession(context.service, settings, lease, parameters, spec, context.is_allowed)


async def _serve(websocket: WebSocket, session: StreamSession, context: RequestContext) -> None:
    """Serve an open stream to its end. An error is sent as a message before the stream is closed."""
    error: GatewayError
    try:
        await _exchange(websocket, session, context)
    except WebSocketDisconnect as gone:
        clear_frames(gone)
        return
    except GatewayError as exc:
        clear_frames(exc)
        error = exc
    except Exception:
        log.exception("unexpected_error")
        error = InternalError()
    else:
        return
    context.note(error)
    code = close_code(error)
    with suppress(WebSocketDisconnect):
        await websocket.send({"type": "websocket.send", "text": error_message(error).decode()})
        await websocket.close(code, error.code)
        context.log_fields["close_code"] = code


def close_code(error: GatewayError) -> int:
    """The close code of an error: 1011 for an internal error (RFC 6455, section 7.4.1)."""
    return INTERNAL if isinstance(error, InternalError) else OWN_CODES + int(error.status)


async def _exchange(websocket: WebSocket, session: StreamSession, context: RequestContext) -> None:
    """Serve frames until the client or the server ends the stream, then close it with the code for either."""
    code, reason = NORMAL, ""

    async def receive() -> bytes | str | None:
        nonlocal code, reason
        message = await websocket.receive()
        if message["type"] != "websocket.disconnect":
            data: bytes | None = message.get("bytes")
            metrics.BYTES_RECEIVED.inc(len(data or b""))
            return message["text"] if data is None else data
        if message["code"] == GOING_DOWN:
            code, reason = GOING_DOWN, "the server is stopping; connect again"
            return None
        if message["code"] == NO_ROOM:
            raise context.runtime.uploads.full()
        raise WebSocketDisconnect(message["code"], message.get("reason"))

    async def send(message: bytes) -> None:
        await websocket.send({"type": "websocket.send", "text": message.decode()})

    try:
        await session.serve(receive, send)
    finally:
        stats = session.stats
        context.log_fields.update(
            frames_answered=stats.answered, frames_failed=stats.failed, frames_dropped=stats.dropped
        )
    context.log_fields["close_code"] = code
    await websocket.close(code, reason)
