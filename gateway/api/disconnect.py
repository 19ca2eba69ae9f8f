"""Cancels the work for clients that disconnect, which uvicorn does not do by itself."""

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway import metrics
from gateway.api.request_context import RequestContext, request_context


class ClientGone(Response):
    """Sends no response, because the client has disconnected."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send nothing."""


async def handle_disconnect(request: Request, _: Exception) -> Response:
    """Handle ClientDisconnect, raised by an incomplete body and by `wait_for_disconnect`."""
    note_disconnect(request_context(request))
    return ClientGone()


def note_disconnect(context: RequestContext) -> None:
    """Count and log a client that has disconnected."""
    metrics.CLIENTS_GONE.inc()
    context.event["client_gone"] = True


async def wait_for_disconnect(request: Request) -> None:
    """Wait until the client disconnects, and raise ClientDisconnect.

    Until the last byte of the body its reader notices a disconnect; two tasks must not call `receive` at once.
    """
    await request_context(request).body_read.wait()
    while (await request.receive())["type"] != "http.disconnect":
        pass
    raise ClientDisconnect
