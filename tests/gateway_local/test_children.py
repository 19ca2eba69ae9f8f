"""Child processes and their addresses: whether they answer, and how they end."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gateway_local.children import end, get, is_ok, wait_answering
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


@contextmanager
def child(code: str) -> Iterator[subprocess.Popen]:
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", code]) as process:
        yield process
        process.kill()


def test_child_that_does_not_answer_is_described(port):
    forever = "import time; time.sleep(600)"
    with child(forever) as process:
        assert wait_answering(process, LOOPBACK, port, "/ready", timeout_seconds=30) is None
        fault = wait_answering(process, LOOPBACK, port, "/other", timeout_seconds=0)
        assert fault == "was not ready after 0 s"
    with child("raise SystemExit(3)") as process:
        assert wait_answering(process, LOOPBACK, free_port(), "/", timeout_seconds=60) == "ended with code 3"
        # Another server may have the port of one that has ended.
        assert wait_answering(process, LOOPBACK, port, "/ready", timeout_seconds=60) == "ended with code 3"


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
    ("at_sigterm", "code"),
    [("SIG_DFL", -15), ("SIG_IGN", -9)],
    ids=["a process that obeys ends", "one that does not is killed"],
)
def test_process_is_ended(at_sigterm, code):
    program = f"import signal, time; signal.signal(15, signal.{at_sigterm}); print(1, flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    with process.stdout:
        process.stdout.readline()
        end(process, 60 if code == -15 else 0.2)
    assert process.returncode == code


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
