"""The context of one HTTP request or WebSocket."""

import asyncio
from collections.abc import Callable, MutableMapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, cast

from starlette.requests import Request
from starlette.types import Scope

from gateway.inference.request_stats import RequestStats

_KEY = "request_context"


@dataclass(slots=True)
class RequestContext:
    """One request: its id, and the data for its log event, metrics and trace."""

    request_id: str
    event: dict[str, Any] = field(default_factory=dict)
    """Fields of the log event."""
    tally: RequestStats = field(default_factory=RequestStats)
    """Counts and times of the images."""
    body_read: asyncio.Event = field(default_factory=asyncio.Event)
    """Set after the last byte of the body: until then its reader notices a disconnect."""
    route: str | None = None
    """The route, if a response is sent before routing."""
    shows_details: bool = True
    """Whether the client may see Triton's addresses and reasons; False without a key if keys are required."""
    is_allowed: Callable[[], bool] = lambda: True
    """Whether the API key is still valid. If not, open streams end; other requests are finished."""
    resources: ExitStack = field(default_factory=ExitStack)
    """Resources that are released after the response."""


def begin(scope: Scope, request_id: str) -> RequestContext:
    """Create the context of a request."""
    request_context = RequestContext(request_id)
    state: MutableMapping[str, Any] = scope.setdefault("state", {})
    state[_KEY] = request_context
    return request_context


def request_context_of(scope: Scope) -> RequestContext:
    """The context of a request, by its scope; valid inside RequestContextMiddleware."""
    return cast("RequestContext", scope["state"][_KEY])


def request_context(request: Request) -> RequestContext:
    """The context of a request."""
    return request_context_of(request.scope)
