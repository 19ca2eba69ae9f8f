"""How many connections there may be, who goes when there are too many, and how long a client may take to read."""

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

from pydantic_core import to_json
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway import metrics
from gateway.errors import GatewayError, Overloaded
from gateway.problem import MEDIA_TYPE, members
from gateway.server.reading import ReadingWatch
from gateway.settings import Settings

ANSWER = b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\nconnection: close\r\ncontent-length: %d\r\n%b\r\n%b"

NEW_IN_A_TURN = 4
"""Connections that may begin in one turn of the event loop; those that are known have their turns in between."""
REFUSED_AT_ONCE = 64
"""Connections beyond the limit that get an error response; any more are closed without one."""
REFUSAL_SECONDS = 2.0
"""How long a connection beyond the limit has to send something and to read its answer."""
STALLED_SECONDS = 1.0
"""A client that has not read for so long may lose its connection when answers take too much room."""


def answer(error: GatewayError) -> bytes:
    """A response to what never becomes a request."""
    body = to_json(members(error, uuid.uuid4().hex))
    retry = b"retry-after: 1\r\n" if isinstance(error, Overloaded) else b""
    return ANSWER % (int(error.status), error.status.phrase.encode(), MEDIA_TYPE.encode(), len(body), retry, body)


class Connections:
    """The connections of one process, at most `most`.

    For one more, an idle one is closed: the oldest of those that have not sent a request yet, or else the one whose
    last answer is longest ago. Where all are busy, the new one is refused.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self._clock = clock
        self._all: set[asyncio.Protocol] = set()
        self._new: dict[CountedProtocol, None] = {}  # both in the order in which they became idle
        self._answered: dict[CountedProtocol, None] = {}
        self._stalled: dict[CountedProtocol, float] = {}  # since when, the longest first
        self._entering: deque[Callable[[], None]] = deque()
        self._entered = 0
        self.refused = 0
        metrics.CONNECTIONS_LIMIT.set(most)

    def __len__(self) -> int:
        return len(self._all)

    def add(self, protocol: "CountedProtocol") -> bool:
        """Count a connection, if there is room or somebody idle makes some."""
        if len(self._all) >= self.most:
            idle = next(iter(self._new or self._answered), None)
            if idle is None:
                return False
            self.remove(idle)
            metrics.CONNECTIONS_CLOSED.labels("idle").inc()
            idle.transport.close()
        self._all.add(protocol)
        self._new[protocol] = None
        metrics.CONNECTIONS.inc()
        return True

    def busy(self, protocol: asyncio.Protocol) -> None:
        """It has sent the headers of a request."""
        for idle in (self._new, self._answered):
            idle.pop(protocol, None)  # type: ignore[call-overload]  # one that is of another kind is in neither

    def idle(self, protocol: "CountedProtocol") -> None:
        """It has its answer."""
        if protocol in self._all:
            self._answered[protocol] = None

    def remove(self, protocol: asyncio.Protocol) -> None:
        """Count it no more."""
        if protocol in self._all:
            self._all.remove(protocol)
            self.busy(protocol)
            self.reads_on(protocol)
            metrics.CONNECTIONS.dec()

    def replace(self, protocol: "CountedProtocol", successor: asyncio.Protocol) -> None:
        """Count another protocol in the place of the one that has had the connection so far; it counts as busy."""
        self.busy(protocol)
        self._all.discard(protocol)
        self._all.add(successor)

    def stalls(self, protocol: "CountedProtocol") -> None:
        """Its client does not read as fast as its answer comes."""
        if protocol in self._all:
            self._stalled.setdefault(protocol, self._clock())

    def reads_on(self, protocol: asyncio.Protocol) -> None:
        """Its client has caught up."""
        self._stalled.pop(protocol, None)  # type: ignore[call-overload]

    def close_slowest_reader(self) -> bool:
        """Close the connection that has kept its answer waiting for longest, STALLED_SECONDS at least, if any has."""
        protocol, since = next(iter(self._stalled.items()), (None, 0.0))
        if protocol is None or self._clock() - since < STALLED_SECONDS:
            return False
        self.reads_on(protocol)
        metrics.CONNECTIONS_CLOSED.labels("unread").inc()
        protocol.transport.abort()
        return True

    def enter(self, begin: Callable[[], None]) -> bool:
        """Whether a new connection may begin in this turn of the event loop; else `begin` is called in a later one."""
        if self._entered < NEW_IN_A_TURN and not self._entering:
            if self._entered == 0:
                asyncio.get_running_loop().call_soon(self._next_turn)
            self._entered += 1
            return True
        self._entering.append(begin)
        return False

    def _next_turn(self) -> None:
        self._entered = 0
        while self._entering and self._entered < NEW_IN_A_TURN:
            self._entering.popleft()()
            self._entered += 1
        if self._entered:
            asyncio.get_running_loop().call_soon(self._next_turn)


class CountedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with a bound on connections, and on the time that a client takes to read its answer."""

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401  # uvicorn's
        super().__init__(*arguments, **options)
        settings: Settings = self.app_state["settings"]
        self._counted: Connections = self.app_state["connections"]
        self._reading = ReadingWatch(self.loop, settings.answer_timeout_seconds)
        self._served: RequestResponseCycle | None = None
        self._no_room = self._told = False
        self._leaving: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """Begin, now or in a later turn, if there is room."""
        super().connection_made(transport)
        if not self._counted.add(self):
            self._begin_to_leave()
        elif not self._counted.enter(self._enter):
            self.flow.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Make room."""
        self._counted.remove(self)
        if self._no_room:
            self._counted.refused -= 1
            if self._leaving is not None:
                self._leaving.cancel()
        self._reading.stop()
        self._leave_requests()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what comes, unless there is no room."""
        if not self._no_room:
            self.parse(data)
        elif not self._told:
            self._told = True
            most = self._counted.most
            sentence = f"There are {most} connections, the maximum; try again later."
            self.transport.write(answer(Overloaded(sentence, limit="max_connections", value=most)))
            if self.transport.can_write_eof():
                self.transport.write_eof()  # a close with bytes unread could take the answer away

    def parse(self, data: bytes) -> None:
        """Take what comes of a connection that has a place."""
        super().data_received(data)

    def eof_received(self) -> None:
        """Let one go that was refused and has read why."""
        if self._no_room:
            self.transport.close()

    def on_headers_complete(self) -> None:
        """Be busy."""
        self._counted.busy(self)
        if self._idle:
            self._reading.stop()  # what is written from now on would be taken for what is not read
        super().on_headers_complete()
        if not self.pipeline:
            self._served = self.cycle

    def on_response_complete(self) -> None:
        """Be idle, unless another request waits; what is written may not be read yet."""
        self._served = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        if self._idle:
            self._counted.idle(self)
        self._reading.begin(self.transport)

    def pause_writing(self) -> None:
        """The client reads more slowly than its answer is made."""
        super().pause_writing()
        self._counted.stalls(self)
        self._reading.begin(self.transport)

    def resume_writing(self) -> None:
        """It has caught up."""
        super().resume_writing()
        self._counted.reads_on(self)
        self._reading.stop()

    def _leave_requests(self) -> None:
        """Tell the request that is served that its client has gone, and begin none that waits behind it.

        uvicorn tells the last one that came alone.
        """
        self.pipeline.clear()
        if self._served is not None:
            self._served.disconnected = True
            self._served.message_event.set()

    @property
    def _idle(self) -> bool:
        """Whether no request is being served; uvicorn's type hides that there may have been none."""
        return not self.cycle or self.cycle.response_complete

    def _enter(self) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def _begin_to_leave(self) -> None:
        self._no_room = True
        self._counted.refused += 1
        metrics.CONNECTIONS_CLOSED.labels("refused").inc()
        if self._counted.refused > REFUSED_AT_ONCE:
            self.transport.abort()
        else:
            self._leaving = self.loop.call_later(REFUSAL_SECONDS, self.transport.abort)
