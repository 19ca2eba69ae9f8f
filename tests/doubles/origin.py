"""A server of images on loopback, which may be hostile, and names that resolve as a test says."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.doubles.backend import PNG

Answer = bytes | Callable[[socket.socket], None]
"""The response to a path: bytes, or a function that writes to the connection."""


def response(body: bytes = PNG, *headers: str, status: str = "200 OK", content_type: str = "image/png") -> bytes:
    """A response with a Content-Length."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", f"Content-Type: {content_type}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def redirect(target: str) -> bytes:
    return response(b"", f"Location: {target}", status="302 Found")


class Origin:
    """Answers each connection once, by the path of its request."""

    def __init__(self, host: str, tls: ssl.SSLContext | None) -> None:
        self.answers: dict[str, Answer] = {"/cat.png": response()}
        self.on_connect = b""
        """The first bytes of each connection, before the client has sent anything."""
        self.heads: list[bytes] = []
        """The head of each request, in the order of arrival."""
        self.open = self.most_open = 0
        """Connections that are open, and the most that were."""
        self.left = threading.Event()
        """Set when a client has closed a connection before its answer was complete."""
        self._tls = tls
        self._changed = threading.Condition()
        self._listener = socket.create_server((host, 0), backlog=200)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, path: str = "/cat.png", host: str = "127.0.0.1") -> str:
        return f"{'http' if self._tls is None else 'https'}://{host}:{self.port}{path}"

    def wait_for_open(self, count: int) -> None:
        """Wait until `count` connections are open."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.open == count, 10), self.open

    def close(self) -> None:
        """Stop listening."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        self._count(1)
        try:
            with connection:
                connection.settimeout(30)
                connection.sendall(self.on_connect)
                if self._tls is not None:
                    connection = self._tls.wrap_socket(connection, server_side=True)
                with connection:
                    self._answer(connection)
        except OSError:
            self.left.set()
        finally:
            self._count(-1)

    def _answer(self, connection: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            if not (data := connection.recv(65_536)):
                return
            head += data
        self.heads.append(head)
        path = head.split(b" ")[1].decode().partition("?")[0]
        answer = self.answers.get(path, response(b"", status="404 Not Found"))
        if isinstance(answer, bytes):
            connection.sendall(answer)
        else:
            answer(connection)

    def _count(self, more: int) -> None:
        with self._changed:
            self.open += more
            self.most_open = max(self.most_open, self.open)
            self._changed.notify_all()


@contextmanager
def origin_on(host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> Iterator[Origin]:
    origin = Origin(host, tls)
    try:
        yield origin
    finally:
        origin.close()


def repeat(piece: bytes, head: bytes) -> Callable[[socket.socket], None]:
    """An answer that sends a head, and then a piece without end."""

    def send(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(piece)

    return send


def drip(head: bytes) -> Callable[[socket.socket], None]:
    """An answer that sends a head, and then single bytes without end."""

    def send(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(b"a")
            time.sleep(0.02)

    return send


def wait_for_client(connection: socket.socket) -> None:
    """An answer that sends nothing, until the client closes the connection."""
    connection.recv(1)
    raise OSError


class Names:
    """A resolver of names that a test makes up: each lookup of a name takes its next answer, or the last one again."""

    def __init__(self) -> None:
        self.lookups: list[str] = []
        self.answers: dict[str, list[list[str] | Exception | threading.Event]] = {}
        self._real = socket.getaddrinfo

    def add(self, name: str, *answers: list[str] | Exception | threading.Event) -> None:
        """Let a name have these addresses, lookup by lookup; or none, once an event has happened."""
        self.answers[name] = list(answers)

    def __call__(self, host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host not in self.answers:
            return self._real(host, port, *args, **options)
        self.lookups.append(host)
        answers = self.answers[host]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, threading.Event):
            answer.wait(30)
            return []
        return [found for address in answer for found in self._real(address, port, type=socket.SOCK_STREAM)]


@contextmanager
def made_up_names() -> Iterator[Names]:
    """Names that only this process knows."""
    with pytest.MonkeyPatch.context() as patch:
        names = Names()
        patch.setattr(socket, "getaddrinfo", names)
        yield names
