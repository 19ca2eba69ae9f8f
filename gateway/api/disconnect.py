"""Clients that go away: their work ends, which uvicorn does not see to by itself."""

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway import metrics
from gateway.api.request_context import RequestContext, request_context


class ClientGone(Response):
    """No answer, as nobody is there to read it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send nothing."""


async def answer_nobody(request: Request, _: Exception) -> Response:
    """Handle ClientDisconnect, which comes out of a body that ends with its connection, and out of `leaving`."""
    note_gone(request_context(request))
    return ClientGone()


def note_gone(gone: RequestContext) -> None:
    """Count a client that has left."""
    metrics.CLIENTS_GONE.inc()
    gone.event["client_gone"] = True


async def leaving(request: Request) -> None:
    """Wait until the client goes away, and raise ClientDisconnect.

    Until the body's last byte its reader notices by itself, and two must not receive at once.
    """
    await request_context(request).body_read.wait()
    while (await request.receive())["type"] != "http.disconnect":
        pass
    raise ClientDisconnect
