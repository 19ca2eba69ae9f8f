"""Clients that go away: their work is cancelled, which uvicorn does not do by itself."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway import metrics

T = TypeVar("T")


class ClientGone(Response):
    """No answer, as nobody is there to read it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send nothing."""


async def answer_nobody(request: Request, _: Exception) -> Response:
    """Handle ClientDisconnect, which comes out of a body that ends with its connection."""
    return _gone(request)


async def unless_client_leaves(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`, or None if the client went away first, in which case the work is cancelled.

    `work` reads the body and sets `request.state.body_read` after its last byte: until then the reading itself notices.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_leaves(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
    except ClientDisconnect:
        pass
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
    _gone(request)
    return None


def _gone(request: Request) -> ClientGone:
    metrics.CLIENTS_GONE.inc()
    request.state.event["client_gone"] = True
    return ClientGone()


async def _leaves(request: Request) -> None:
    await request.state.body_read.wait()
    while (await request.receive())["type"] != "http.disconnect":
        pass
