"""The lifespan state, available to every request."""

from typing import TypedDict, cast

from starlette.requests import Request
from starlette.types import Scope

from gateway.inference.service import InferenceService
from gateway.limits.connections import Connections
from gateway.limits.response_buffer import ResponseBuffer
from gateway.limits.streams import Streams
from gateway.limits.upload_buffer import UploadBuffer
from gateway.server.draining import Draining
from gateway.settings import Settings


class State(TypedDict):
    """The objects that handlers share; created once per process."""

    settings: Settings
    service: InferenceService
    uploads: UploadBuffer
    answers: ResponseBuffer
    connections: Connections
    draining: Draining
    streams: Streams


def parts_of(scope: Scope) -> State:
    """The lifespan state of a scope, typed."""
    return cast("State", scope["state"])


def state(request: Request) -> State:
    """The lifespan state of a request, typed."""
    return parts_of(request.scope)
