"""The context of one HTTP request or WebSocket."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from starlette.requests import HTTPConnection
from starlette.types import Scope

from gateway import metrics
from gateway.api.route_table import KnownRoute
from gateway.errors import GatewayError
from gateway.inference.request_spec import RequestStats
from gateway.inference.service import InferenceService
from gateway.limits.caller import ANYONE, Caller
from gateway.limits.pools import PoolLease

if TYPE_CHECKING:
    from gateway.hooks import Runtime
    from gateway.server.connection import Connection
    from gateway.settings import Settings

KEY = "request_context"
"""The key of the request's context in its state."""
CLIENT_GONE = 499
"""The status if no response was sent, as in nginx."""
CLIENT_HEADER = "X-Client-ID"
"""The header whose value ties a client to one version of a model; without it the version is random."""


@dataclass(slots=True)
class RequestContext:
    """One request: its id, the objects of the service, and the data for its log event, metrics and trace."""

    request_id: str
    runtime: "Runtime"
    settings: "Settings"
    service: InferenceService
    reader: "Connection | None" = None
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

    def version_of(
        self, model_name: str, version: str | None, headers: Mapping[str, str], client: str = ""
    ) -> tuple[str, bool]:
        """The version that answers ("" for the one in use), and whether the model's rollout has chosen it.

        `version` is the one that the client requests, if any. A client always gets the same version; it is identified
        by CLIENT_HEADER, or else by `client`.
        """
        if version is not None:
            return version, False
        rollout = self.service.backend.rollout(model_name)
        if rollout is None or len(rollout.shares) == 1:
            return "", False
        return rollout.choose(model_name, headers.get(CLIENT_HEADER, "") or client), True

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


def request_context_of(scope: Scope) -> RequestContext:
    """The context of a request, by its scope; valid inside gateway.api.middleware."""
    return cast("RequestContext", scope["state"][KEY])


def request_context(connection: HTTPConnection) -> RequestContext:
    """The context of a request or WebSocket."""
    return request_context_of(connection.scope)
