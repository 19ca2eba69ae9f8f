"""An HTTP server on loopback, in a thread, whose answers a test chooses."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Asked:
    """A request that the server got."""

    path: str
    headers: dict[str, str]
    body: bytes = b""


@dataclass
class Reply:
    """An answer: `cut` sends the headers and that many bytes of the body, then closes the connection.

    A header of None is left out, such as the Content-Length that the body has by default.
    """

    status: int
    body: bytes = b""
    headers: dict[str, str | None] = field(default_factory=dict)
    cut: int | None = None


@contextmanager
def http_server(answer: Callable[[Asked], Reply], port: int = 0) -> Iterator[int]:
    """The port of a server that answers GET and POST while the context is open; names of headers are in lower case."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = answer(Asked(self.path, headers, self.rfile.read(int(headers.get("content-length", 0)))))
            self.send_response(reply.status)
            for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                if value is not None:
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.body[: reply.cut])
            if reply.cut is not None:
                self.close_connection = True

        do_POST = do_GET  # noqa: N815  # the name that http.server looks for

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
