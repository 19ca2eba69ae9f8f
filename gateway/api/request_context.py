"""The context of one HTTP request or WebSocket."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from starlette.requests import HTTPConnection

from gateway import metrics
from gateway.api.route_table import KnownRoute
from gateway.errors import GatewayError
from gateway.inference.request_spec import RequestStats
from gateway.inference.service import InferenceService
from gateway.limits.caller import ANYONE, Caller
from gateway.limits.pools import PoolClient, PoolLease

if TYPE_CHECKING:
    from gateway.hooks import Runtime
    from gateway.settings import Settings

CONTEXT = "request_context"
"""The key of the request's context in its state."""
CLIENT_GONE = 499
"""The status if no response was sent, as in nginx."""


@dataclass(slots=True)
class RequestContext:
    """One request: its id, the objects of the service, and the data for its log event, metrics and trace."""

    request_id: str
    runtime: "Runtime"
    settings: "Settings"
    service: InferenceService
    reader: PoolClient | None = None
    """Reads the response."""
    started: float = field(default_factory=time.perf_counter)
    """When its headers had arrived, by time.perf_counter."""
    status: int = CLIENT_GONE
    """The status of the response, once it is sent."""
    log_fields: dict[str, Any] = field(default_factory=dict)
    stats: RequestStats = field(default_factory=RequestStats)
    """Counts and times of the images."""
    route: KnownRoute | None = None
    """The route, once the API key is known to be valid for it."""
    shows_details: bool = True
    """Whether the client may see Triton's addresses and reasons; False without a key if keys are required."""
    is_allowed: Callable[[], bool] = lambda: True
    """Whether the API key is still valid. If not, open streams end; other requests are finished."""
    caller: Caller = ANYONE
    charged: bool = False
    """Whether the first image is charged to the caller; see the middleware LimitCheck."""
    leases: list[PoolLease] = field(default_factory=list)
    """Released after the response."""

    def check_model(self, name: str) -> None:
        """Raise Forbidden if the API key may not use a model."""
        self.caller.check_model(name)

    def note(self, error: GatewayError) -> None:
        """Add an error to the log event: its code and, only for operators, the message of its cause."""
        self.log_fields["code"] = error.code
        if error.__cause__ is not None and (cause := str(error.__cause__)):
            self.log_fields["cause"] = cause

    def note_disconnect(self) -> None:
        """Count and log that the client has disconnected."""
        metrics.CLIENTS_GONE.inc()
        self.log_fields["client_gone"] = True


def request_context(connection: HTTPConnection) -> RequestContext:
    """The context of a request or WebSocket; valid inside gateway.api.middleware."""
    return cast("RequestContext", connection.scope["state"][CONTEXT])
