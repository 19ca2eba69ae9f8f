"""The trace that a request belongs to (W3C Trace Context, level 2): taken from its client, handed on to Triton.

Nothing here needs OpenTelemetry. Where spans are exported, those of gateway.otlp stand in for `Span`.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Protocol

from gateway.errors import UserError

Headers = dict[str, str]
Attribute = str | int | float | bool

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
# 512 bytes have to be handed on; gRPC takes printable ASCII only.
_TRACESTATE = re.compile(rb"[\x20-\x7e]{1,512}")
_KNOWN_FLAGS = 0x03
"""sampled and random-trace-id: other bits must not be handed on by who does not know them."""


class TracingUnavailable(UserError):
    """Spans are to be exported, and what exports them is not installed."""


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A place in a trace: ids as small hexadecimal digits, 32 and 16, the flags, and the vendors' tracestate or ""."""

    trace_id: str
    span_id: str
    flags: int
    state: str = ""

    def headers(self) -> Headers:
        """`traceparent` and, where there is one, `tracestate`."""
        headers = {"traceparent": f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"}
        if self.state:
            headers["tracestate"] = self.state
        return headers


class Span:
    """A piece of work at a place in a trace. This one records nothing: its calls are the client's own children."""

    __slots__ = ("context",)

    def __init__(self, context: TraceContext) -> None:
        self.context = context

    def call(self, name: str, attributes: Mapping[str, Attribute]) -> AbstractContextManager[Headers | None]:  # noqa: ARG002  # for those that record
        """A call to another server, while the block lasts; gives the headers that it should carry."""
        return nullcontext(self.context.headers())


class ServerSpan(Protocol):
    """The span of a request, which is exported when it ends."""

    @property
    def context(self) -> TraceContext:
        """Its place in the trace."""
        ...

    def call(self, name: str, attributes: Mapping[str, Attribute]) -> AbstractContextManager[Headers | None]:
        """See Span.call."""
        ...

    def stage(self, name: str, began: float, ended: float, seconds: float) -> None:
        """A stage between two moments of time.perf_counter, and the seconds that it was at work."""
        ...

    def end(self, name: str, attributes: Mapping[str, Attribute], error: str | None) -> None:
        """End the span under its final name; `error` is the code of a fault of the service, if there was one."""
        ...


class Tracer(Protocol):
    """Makes the spans of requests and exports them."""

    def server(self, name: str, parent: TraceContext | None, attributes: Mapping[str, Attribute]) -> ServerSpan:
        """Begin the span of a request that has just come in."""
        ...

    def close(self) -> None:
        """Send what is left."""
        ...


current: ContextVar[Span | ServerSpan | None] = ContextVar("gateway_span", default=None)
"""The span of the request that is being served, if it has one."""

_UNTRACED: AbstractContextManager[Headers | None] = nullcontext(None)


def call(name: str, attributes: Mapping[str, Attribute]) -> AbstractContextManager[Headers | None]:
    """A call to another server as part of the current span, if there is one; see Span.call."""
    span = current.get()
    return _UNTRACED if span is None else span.call(name, attributes)


def received(headers: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
    """The trace that a client's headers (names in small letters) name, or None where they name none or a broken one."""
    parents = []
    states = []
    for name, value in headers:
        if name == b"traceparent":
            parents.append(value)
        elif name == b"tracestate":
            states.append(value)
    if len(parents) != 1 or not (match := _TRACEPARENT.fullmatch(parents[0].strip())):
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == b"ff" or (version == b"00" and more) or not (trace_id.strip(b"0") and span_id.strip(b"0")):
        return None
    state = b",".join(filter(None, map(bytes.strip, states)))
    return TraceContext(
        trace_id.decode(),
        span_id.decode(),
        int(flags, 16) & _KNOWN_FLAGS,
        state.decode() if _TRACESTATE.fullmatch(state) else "",
    )


def require_sdk() -> None:
    """Raise TracingUnavailable unless gateway.otlp can be imported."""
    try:
        found = find_spec("opentelemetry.exporter.otlp.proto.http") and find_spec("opentelemetry.sdk")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise TracingUnavailable(
            "GATEWAY_OTLP_ENDPOINT is set, but OpenTelemetry is not installed: "
            "pip install 'triton-image-gateway[otel]', or unset the variable"
        )
