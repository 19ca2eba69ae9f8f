"""The door: who would find the queue full is told so before anything is done for it."""

import asyncio
from types import SimpleNamespace

import pytest
from starlette.types import Message, Receive, Scope, Send

from gateway.api.gate import Gate
from gateway.api.request_context import begin
from gateway.errors import Overloaded
from gateway.metrics import CLASSIFYING_ROUTES

FULL = Overloaded("Full.", limit="max_images_waiting", value=1)


class Application:
    def __init__(self) -> None:
        self.served = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.served += 1


def ask(path: str, method: str = "POST", *, full: bool = True, kind: str = "http") -> tuple[int, list[Message], Scope]:
    """How often the application was called, what was sent, and the scope."""
    application, sent = Application(), []

    def check() -> None:
        if full:
            raise FULL

    async def receive() -> Message:
        raise AssertionError("the body was asked for")

    async def send(message: Message) -> None:
        sent.append(message)

    service = SimpleNamespace(admission=SimpleNamespace(check=check))
    scope = {"type": kind, "method": method, "path": path, "headers": [], "state": {"service": service}}
    begin(scope, "r1")
    asyncio.run(Gate(application)(scope, receive, send))
    return application.served, sent, scope


@pytest.mark.parametrize("route", CLASSIFYING_ROUTES)
def test_while_the_queue_is_full_images_are_refused_unread(route):
    served, (start, _), scope = ask(route.format(name="m", version="1"))
    assert (served, start["status"]) == (0, 503)
    context = scope["state"]["request_context"]
    assert (context.route, context.event["code"]) == (route, "overloaded")


@pytest.mark.parametrize("route", CLASSIFYING_ROUTES)
def test_while_there_is_room_they_are_let_through(route):
    served, sent, scope = ask(route.format(name="m", version="1"), full=False)
    assert (served, sent, scope["state"]["request_context"].route) == (1, [], None)


@pytest.mark.parametrize(
    ("path", "method", "kind"),
    [
        ("/predict", "GET", "http"),
        ("/models", "POST", "http"),
        ("/predict/more", "POST", "http"),
        ("/", "", "lifespan"),
    ],
)
def test_everything_else_is_let_through_all_the_same(path, method, kind):
    assert ask(path, method, kind=kind)[0] == 1
