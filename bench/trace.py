"""`python -m bench.trace`: how many functions and modules of the gateway one request passes through.

A real gateway with a real Triton behind it runs in this process; sys.setprofile counts, on the event loop's thread, the
calls of functions that are defined in the project's packages, from a request's first byte to the end of its answer.
Health probes run on the same thread, so each request is sent several times and the smallest trace counts.
"""

import asyncio
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import httpx
import typer
import uvicorn
from rich.console import Console
from rich.table import Table

from bench.photos import coffee
from gateway.app import create_app
from gateway.logs import configure_logs
from gateway.plugin_loading import settings_class
from gateway.server.serve import server_options
from gateway_local.hosts import LOOPBACK, free_port
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY, PROJECT, default_cache_dir
from gateway_local.runtime.wheel import ensure_runtime
from gateway_local.server import EmbeddedTriton

Settings = settings_class()

START_SECONDS = 300.0
PACKAGES = tuple(f"{PROJECT}/{path.name}/" for path in PROJECT.glob("gateway*") if path.is_dir())


@dataclass
class Trace:
    """Calls of the project's functions, in order: the module and the name of each."""

    calls: list[tuple[str, str]] = field(default_factory=list)

    @property
    def changes(self) -> int:
        """How often consecutive calls are in different modules."""
        modules = [module for module, _ in self.calls]
        return sum(before != after for before, after in pairwise(modules))

    @property
    def modules(self) -> list[str]:
        """The modules, in the order of their first calls."""
        return list(dict.fromkeys(module for module, _ in self.calls))


class Tracer:
    """Counts calls on the thread of an event loop while it is on."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._trace = Trace()
        self._frames: dict[int, FrameType] = {}
        """Frames that were entered: a coroutine that is resumed is no call."""

    def record(self, send: Callable[[], object]) -> Trace:
        """The trace of `send`, which runs on the caller's thread."""
        self._trace, self._frames = Trace(), {}
        self._switch(self._note)
        try:
            send()
        finally:
            self._switch(None)
        return self._trace

    def _switch(self, profile: Callable[[FrameType, str, Any], None] | None) -> None:
        done = threading.Event()

        def switch() -> None:
            sys.setprofile(profile)
            done.set()

        self._loop.call_soon_threadsafe(switch)
        done.wait()

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGES) and id(frame) not in self._frames:
            self._frames[id(frame)] = frame
            path = Path(code.co_filename).relative_to(PROJECT).with_suffix("")
            self._trace.calls.append((".".join(path.parts), code.co_qualname))


def requests(url: str) -> dict[str, Callable[[], object]]:
    """What sends the requests to trace, by name."""
    photo = coffee().data
    client = httpx.Client(base_url=url, timeout=60)

    def raw() -> None:
        client.post("/predict", content=photo, headers={"Content-Type": "image/jpeg"}).raise_for_status()

    def multipart() -> None:
        client.post("/predict", files={"files": ("coffee.jpg", photo)}).raise_for_status()

    return {"POST /predict, multipart": multipart, "POST /predict, raw body": raw}


def main(
    times: Annotated[int, typer.Option(help="How often each request is sent; the smallest trace counts.", min=1)] = 10,
    *,
    calls: Annotated[bool, typer.Option("--calls", help="Print every call of POST /predict as well.")] = False,
) -> None:
    """Print calls, changes of module and modules of one request of each kind."""
    runtime = ensure_runtime(default_cache_dir(), lambda line: typer.echo(line, err=True))
    port = free_port()
    with EmbeddedTriton(runtime, DEFAULT_MODEL_REPOSITORY, on_log=lambda _: None) as triton:
        triton.wait_ready(START_SECONDS)
        settings = Settings(triton_url=[triton.url], port=port, host=LOOPBACK, log_level="error")
        configure_logs(settings)
        server = uvicorn.Server(uvicorn.Config(create_app(settings), **server_options(settings)))
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            url = f"http://{LOOPBACK}:{port}"
            _wait_ready(url)
            tracer = Tracer(server.servers[0].get_loop())
            table = Table("request", "calls", "changes of module", "modules", box=None, pad_edge=False)
            for name, send in requests(url).items():
                send()
                trace = min((tracer.record(send) for _ in range(times)), key=lambda trace: len(trace.calls))
                table.add_row(name, str(len(trace.calls)), str(trace.changes), str(len(trace.modules)))
                if calls and name.startswith("POST /predict, multipart"):
                    for module, function in trace.calls:
                        typer.echo(f"{module:45} {function}")
            Console().print(table)
        finally:
            server.should_exit = True
            thread.join()


def _wait_ready(url: str) -> None:
    with httpx.Client(transport=httpx.HTTPTransport(retries=20)) as client:
        for _ in range(600):
            if client.get(f"{url}/health/ready").status_code == 200:
                return
            threading.Event().wait(0.1)
    raise SystemExit("the gateway was not ready in time")


if __name__ == "__main__":
    typer.run(main)
