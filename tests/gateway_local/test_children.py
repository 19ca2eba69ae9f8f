"""Servers and their addresses: whether they answer."""

import socket
from collections.abc import Iterator

import pytest

from gateway_local.children import get, is_ok
from gateway_local.hosts import LOOPBACK, authority, free_port, reachable
from tests.doubles.http import Reply, http_server
from tests.doubles.origin import origin_on


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a server that answers `/ready` with 200 and everything else with 503."""
    with http_server(lambda asked: Reply(200 if asked.path == "/ready" else 503, b"x" * 20_000)) as port:
        yield port


def test_response_is_read_up_to_a_limit(port):
    status, body = get(LOOPBACK, port, "/other", timeout_seconds=30)
    assert (status, len(body)) == (503, 10_000)
    assert is_ok(LOOPBACK, port, "/ready", timeout_seconds=30)
    assert not is_ok(LOOPBACK, port, "/other", timeout_seconds=30)


def test_server_that_refuses_or_is_silent_or_speaks_another_protocol_is_an_error():
    unused_port = free_port()
    with pytest.raises(ConnectionRefusedError):
        get(LOOPBACK, unused_port, "/", timeout_seconds=30)
    assert not is_ok(LOOPBACK, unused_port, "/", timeout_seconds=30)
    with socket.create_server((LOOPBACK, 0)) as silent, pytest.raises(TimeoutError):
        get(LOOPBACK, silent.getsockname()[1], "/", timeout_seconds=0.1)
    with origin_on() as origin:
        origin.answers["/"] = b"220 mail.example ready\r\n\r\n"
        with pytest.raises(OSError, match="not HTTP"):
            get(LOOPBACK, origin.port, "/", timeout_seconds=30)


@pytest.mark.parametrize(
    ("host", "connects_to", "stands_in_a_url_as"),
    [
        ("0.0.0.0", "127.0.0.1", "127.0.0.1:80"),  # noqa: S104  # what is tested
        ("::", "::1", "[::1]:80"),
        ("::1", "::1", "[::1]:80"),
        ("192.0.2.7", "192.0.2.7", "192.0.2.7:80"),
        ("gateway.example", "gateway.example", "gateway.example:80"),
    ],
)
def test_listening_host_has_a_reachable_address(host, connects_to, stands_in_a_url_as):
    assert reachable(host) == connects_to
    assert authority(host, 80) == stands_in_a_url_as
