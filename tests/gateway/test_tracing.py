"""Traces: trace headers of clients, and their propagation to Triton."""

import pytest

from gateway.tracing import NO_TRACE, headers_of, received, trace_id
from tests.otlp import PARENT, TRACE, place


def test_trace_of_the_client_is_used():
    taken = received([(b"host", b"x"), (b"traceparent", f" 00-{TRACE}-{PARENT}-01 ".encode())])
    assert headers_of(taken) == place(1)
    assert trace_id(taken) == TRACE


def test_malformed_traceparent_is_ignored():
    taken = received([(b"traceparent", f"00-{TRACE[1:]}ä-{PARENT}-01".encode("latin-1"))])
    assert taken == NO_TRACE
    assert headers_of(taken) == {}
    assert trace_id(taken) is None


def test_two_traceparent_headers_are_ignored():
    header = (b"traceparent", f"00-{TRACE}-{PARENT}-01".encode())
    assert received([header, header]) == NO_TRACE
    assert received([(b"tracestate", b"a=1")]) == NO_TRACE


@pytest.mark.parametrize(
    ("states", "taken"),
    [
        ([], ""),
        ([b"congo=t61rcWkgMzE"], "congo=t61rcWkgMzE"),
        ([b" a=1 ", b"", b"b=2,c=3"], "a=1,b=2,c=3"),
        ([b"a=" + b"x" * 253, b"b=" + b"x" * 254], "a=" + "x" * 253 + ",b=" + "x" * 254),  # 512 bytes
        ([b"a=" + b"x" * 254, b"b=" + b"x" * 254], ""),
        ([b"a=\xff"], ""),  # gRPC would refuse to send it
    ],
)
def test_valid_tracestate_is_propagated(states, taken):
    headers = [(b"traceparent", f"00-{TRACE}-{PARENT}-01".encode()), *((b"tracestate", state) for state in states)]
    assert headers_of(received(headers)) == place(1, taken)
