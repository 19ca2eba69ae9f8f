"""One HTTP request and what becomes of it."""

import asyncio
from collections.abc import Callable, MutableMapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, cast

from starlette.requests import Request
from starlette.types import Scope

from gateway.inference.request_stats import RequestStats

_KEY = "exchange"


@dataclass(slots=True)
class RequestContext:
    """One request: its id, and what the log, the metrics and the trace say of it."""

    request_id: str
    event: dict[str, Any] = field(default_factory=dict)
    """Fields of the log's event."""
    tally: RequestStats = field(default_factory=RequestStats)
    """What becomes of the images."""
    body_read: asyncio.Event = field(default_factory=asyncio.Event)
    """Set after the last byte of the body: until then its reader notices when the client leaves."""
    route: str | None = None
    """The route, where a request is answered before it is routed."""
    shows_details: bool = True
    """Whether the client may see Triton's addresses and reasons; not without a key where keys are on."""
    is_allowed: Callable[[], bool] = lambda: True
    """Whether the key that opened it is still accepted; requests that were begun are finished anyway, streams end."""
    resources: ExitStack = field(default_factory=ExitStack)
    """What is given back when the answer is out, whatever it was."""


def begin(scope: Scope, request_id: str) -> RequestContext:
    """Begin the exchange of a request."""
    request_context = RequestContext(request_id)
    state: MutableMapping[str, Any] = scope.setdefault("state", {})
    state[_KEY] = request_context
    return request_context


def request_context_of(scope: Scope) -> RequestContext:
    """The exchange of a request, from within RequestContext."""
    return cast("RequestContext", scope["state"][_KEY])


def request_context(request: Request) -> RequestContext:
    """The exchange of a request."""
    return request_context_of(request.scope)
