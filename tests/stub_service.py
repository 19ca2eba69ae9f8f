"""A gateway on a local port with an inference server that answers at once, for tests of clients."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from gateway.app import create_app
from tests.gateway.api.stub import StubBackend
from tests.processes import free_port, wait_for
from tests.settings import Settings


@contextmanager
def stub_service(backend: StubBackend | None = None, **settings: object) -> Iterator[str]:
    """The URL of a gateway that runs in a thread of this process."""
    port = free_port()
    app = create_app(Settings(_env_file=None, **settings), backend or StubBackend())
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", access_log=False))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_for(lambda: server.started)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)
    assert not thread.is_alive()
