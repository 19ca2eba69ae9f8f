"""What the lifespan hands to every request."""

from typing import TypedDict, cast

from starlette.requests import Request
from starlette.types import Scope

from gateway.api.answer_room import AnswerRoom
from gateway.inference.buffer import UploadBuffer
from gateway.inference.service import InferenceService
from gateway.server.connections import Connections
from gateway.server.draining import Draining
from gateway.settings import Settings
from gateway.streams.limit import Streams


class State(TypedDict):
    """The parts that handlers work with; made once for each process."""

    settings: Settings
    service: InferenceService
    uploads: UploadBuffer
    answers: AnswerRoom
    connections: Connections
    draining: Draining
    streams: Streams


def parts_of(scope: Scope) -> State:
    """The parts, typed."""
    return cast("State", scope["state"])


def state(request: Request) -> State:
    """The parts, typed."""
    return parts_of(request.scope)
