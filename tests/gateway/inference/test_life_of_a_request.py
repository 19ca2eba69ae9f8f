"""A request that has ended leaves nothing, for all events in all orders.

Hypothesis plays clients that send, stall, break off and leave, a server that answers late, wrongly or never, a shadow
version, decoders, the clock, and a handler that is cancelled. It lets the event loop take any number of steps in
between: so each of these comes at every `await` there is.
"""

import asyncio
import contextlib
from dataclasses import dataclass, field

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from starlette.requests import ClientDisconnect

from gateway.errors import (
    DeadlineExceeded,
    InferenceFailed,
    InvalidBody,
    ModelNotFound,
    Overloaded,
    TritonUnreachable,
    UndecodableImage,
)
from gateway.inference.backend import CallLimits
from gateway.inference.result import Result
from gateway.limits.pools import PoolLease, upload_buffer
from tests.asking import encode
from tests.doubles.scripted import (
    Body,
    Loop,
    ScriptedBackend,
    ScriptedDecoders,
    label_of,
    query,
    service_of,
)

PIXELS = np.zeros((4, 4, 3), np.uint8)


def shades(first: int, count: int) -> list[bytes]:
    """Images that differ, so that each result shows to which image it belongs."""
    return [encode(np.full((4, 4, 3), shade, np.uint8), ".png") for shade in range(first, first + count)]


UPLOADS = {"passes": shades(0, 100), "alone": shades(100, 10), "decoded": [encode(PIXELS, ".gif")], "refused": [b"no"]}
FAULTS = (ModelNotFound, TritonUnreachable, InferenceFailed, DeadlineExceeded, RuntimeError)
MAX_IMAGES, MAX_WAITING, MAX_REQUESTS, MAX_BYTES = 6, 2, 6, 500


class Enough(Exception):
    """The client wants no more results."""


@dataclass(eq=False)
class Client:
    """A request from its client's side."""

    body: Body
    buffer: PoolLease | None = None
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    enough: int | None = None
    sent: list[bytes] = field(default_factory=list)
    results: int = 0
    task: "asyncio.Task[None] | None" = None


class Requests(RuleBasedStateMachine):
    supports_cancellation = True

    def __init__(self) -> None:
        super().__init__()
        self.loop = Loop()
        self.backend = ScriptedBackend(supports_cancellation=self.supports_cancellation)
        self.decoders = ScriptedDecoders()
        self.service = service_of(
            self.backend,
            decoders=self.decoders,
            shadow={"m": {"2": 100}},
            max_images=MAX_IMAGES,
            max_images_waiting=MAX_WAITING,
            max_bytes=MAX_BYTES,
            batch_images=3,
        )
        self.backend.alone.update((upload, "m", "") for upload in UPLOADS["alone"])
        self.spare = self.service.shadows.spare
        self.spare.bytes.most = MAX_BYTES  # a quarter of it is less than an image
        self.uploads = upload_buffer(1_000)
        self.clients: list[Client] = []

    async def handle(self, client: Client, timeout_seconds: float) -> None:
        """Handle a request as a route does."""

        async def leaving() -> None:
            await client.gone.wait()
            raise ClientDisconnect

        def take(result: Result) -> None:
            client.results += 1
            sent = client.sent[result.index]
            if result.error is None and sent not in UPLOADS["decoded"]:
                assert [each.label for each in result.predictions] == [label_of(sent)]
            if client.results == client.enough:
                raise Enough

        with self.uploads.lease() as client.buffer, contextlib.suppress(Enough):
            await self.service.run(client.body.uploads(), query(timeout_seconds), take, leaving)

    @property
    def running(self) -> list[Client]:
        return [client for client in self.clients if client.task and not client.task.done()]

    def pick(self, data: st.DataObject) -> Client:
        return data.draw(st.sampled_from(self.running))

    @rule(timeout_seconds=st.sampled_from([1, 3, 30]), enough=st.sampled_from([None, 1]))
    def come(self, timeout_seconds: float, enough: int | None) -> None:
        if len(self.running) < MAX_REQUESTS:
            client = Client(Body(), enough=enough)
            client.task = self.loop.create_task(self.handle(client, timeout_seconds))
            self.clients.append(client)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), kinds=st.lists(st.sampled_from(sorted(UPLOADS)), min_size=1, max_size=6), ends=st.booleans())
    def send(self, data: st.DataObject, kinds: list[str], ends: bool) -> None:
        client = self.pick(data)
        body = client.body
        uploads = [data.draw(st.sampled_from(UPLOADS[kind])) for kind in kinds]
        client.sent += uploads
        for upload in uploads:
            body.send(upload)
        if client.buffer is not None:
            with contextlib.suppress(Overloaded):
                client.buffer.hold(sum(map(len, uploads)))
        if ends:
            body.end()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def break_off(self, data: st.DataObject) -> None:
        self.pick(data).body.break_off(InvalidBody())

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.pick(data).gone.set()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.pick(data).task.cancel()

    @rule(calls=st.sampled_from([None, 1, 2]))
    def limit_calls(self, calls: int | None) -> None:
        self.backend.limits = None if calls is None else CallLimits(calls, images=3)

    @rule(times=st.integers(1, 6))
    def turn(self, times: int) -> None:
        self.loop.turn(times)

    @rule(seconds=st.sampled_from([0.5, 1, 2, 40]))
    def pass_time(self, seconds: float) -> None:
        self.loop.pass_time(seconds)

    @precondition(lambda self: self.backend.pending)
    @rule(data=st.data(), fault=st.sampled_from([None, None, None, *FAULTS]))
    def answer(self, data: st.DataObject, fault: type[Exception] | None) -> None:
        call = data.draw(st.sampled_from(self.backend.pending))
        if fault is None:
            call.answer()
        else:
            call.fail(fault())

    @precondition(lambda self: self.decoders.pending)
    @rule(data=st.data(), fails=st.booleans())
    def decode(self, data: st.DataObject, fails: bool) -> None:
        number = data.draw(st.integers(0, len(self.decoders.pending) - 1))
        self.decoders.finish(number, UndecodableImage() if fails else None)

    @invariant()
    def limits_hold(self) -> None:
        admission = self.service.admission
        assert 0 <= admission.images.held <= MAX_IMAGES
        assert len(admission) <= MAX_WAITING + MAX_REQUESTS
        assert admission.bytes.held >= 0
        assert 0 <= self.spare.images.held <= 1
        assert 0 <= self.spare.bytes.held <= MAX_BYTES

    @invariant()
    def what_is_over_has_left_nothing(self) -> None:
        if not self.running:
            self.loop.settle()
            admission = self.service.admission
            assert len(asyncio.all_tasks(self.loop)) == len(self.service.uncancelled)
            assert len(admission) == 0
            assert all(client.body.closed or not client.body.opened for client in self.clients)
            if not self.service.uncancelled:
                assert admission.images.held == admission.bytes.held == self.uploads.bound.held == 0
                assert self.spare.images.held == self.spare.bytes.held == 0

    def teardown(self) -> None:
        """Every client leaves, and the remaining work ends."""
        for client in self.running:
            client.gone.set()
        self.loop.settle()
        assert not self.running
        while self.backend.pending or self.decoders.pending:
            for call in self.backend.pending:
                call.answer()
            while self.decoders.pending:
                self.decoders.finish()
            self.loop.settle()
        self.what_is_over_has_left_nothing()
        assert not self.service.uncancelled
        assert not self.loop.unhandled
        assert not any(call.cancelled for call in self.backend.calls) or self.supports_cancellation
        for client in self.clients:
            if not client.task.cancelled():
                client.task.exception()  # seen
        self.loop.close()


class RequestsToAnOldTriton(Requests):
    """The same, where no call may be cancelled."""

    supports_cancellation = False


TestRequests = Requests.TestCase
TestRequestsToAnOldTriton = RequestsToAnOldTriton.TestCase
for _case in (TestRequests, TestRequestsToAnOldTriton):
    _case.settings = settings(
        stateful_step_count=40,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
del _case
