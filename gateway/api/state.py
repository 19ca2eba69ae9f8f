"""What the lifespan hands to every request."""

from typing import TypedDict, cast

from starlette.requests import Request

from gateway.inference.service import InferenceService
from gateway.server.draining import Draining
from gateway.settings import Settings


class State(TypedDict):
    """The parts that handlers work with; made once for each process."""

    settings: Settings
    service: InferenceService
    draining: Draining


def state(request: Request) -> State:
    """The parts, typed."""
    return cast("State", request.scope["state"])
