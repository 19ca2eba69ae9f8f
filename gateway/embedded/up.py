"""Triton and the API together, from one command on one machine."""

import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from gateway.embedded import launch
from gateway.embedded.keeper import Keeper
from gateway.embedded.runtime import Runtime, default_cache_dir, ensure_runtime
from gateway.embedded.server import EmbeddedTriton
from gateway.errors import UserError
from gateway.server.serve import check_address
from gateway.settings import Settings, variable
from gateway.triton.contract import CLASSIFIER

Say = Callable[[str], None]
POLL_SECONDS = 0.2


class UpFailed(UserError):
    """One of the two processes ended by itself; the message says which."""


def up(settings: Settings, model_repository: Path, *, say: Say, log: Say, triton_port: int = 0) -> None:
    """Start Triton and the API, say where to look, and stop both in order on SIGINT or SIGTERM.

    `say` gets the progress, `log` Triton's log; `triton_port` is for gRPC, 0 takes a free one. Raises AddressUnusable,
    TritonRuntimeError or UpFailed.
    """
    started = time.monotonic()
    check_address(settings)
    runtime = _prepare(settings, model_repository, say)
    triton = EmbeddedTriton(
        runtime, model_repository, on_log=log, grpc_port=triton_port, cache_bytes=settings.triton_cache_bytes
    )
    api: subprocess.Popen[bytes] | None = None
    _interrupt_on_signals()
    try:
        say(f"starting Triton with the models of {model_repository}")
        triton.start()
        triton.wait_ready(settings.triton_start_timeout_seconds)
        say(f"Triton is ready after {time.monotonic() - started:.1f} s on {triton.url} (gRPC); starting the API")
        api = _start_api(settings, triton.url)
        _wait_ready(settings, api)
        address = f"http://{_reachable(settings.host)}:{settings.port}"
        say(f"ready after {time.monotonic() - started:.1f} s: open {address}/ or try")
        say(f"  curl -F files=@examples/cat.jpg {address}/predict")
        say("Ctrl-C stops everything")
        keeper = Keeper(triton, say, start_timeout_seconds=settings.triton_start_timeout_seconds)
        while True:
            _check(api)
            keeper.check()
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        say("stopping")
    finally:
        _ignore_signals()
        if api is not None:
            _stop(api, settings.shutdown_grace_seconds)
        triton.stop()
        say("stopped")


def run_triton(
    settings: Settings, model_repository: Path, *, host: str, ports: tuple[int, int, int], say: Say, log: Say
) -> None:
    """Run Triton alone on (gRPC, HTTP, metrics) ports until a signal; raises TritonRuntimeError or UpFailed."""
    runtime = _prepare(settings, model_repository, say)
    grpc_port, http_port, metrics_port = ports
    triton = EmbeddedTriton(
        runtime,
        model_repository,
        on_log=log,
        host=host,
        grpc_port=grpc_port,
        http_port=http_port,
        metrics_port=metrics_port,
        cache_bytes=settings.triton_cache_bytes,
    )
    _interrupt_on_signals()
    try:
        triton.start()
        triton.wait_ready(settings.triton_start_timeout_seconds)
        say(f"Triton is ready on {triton.url} (gRPC)")
        code = triton.wait()
        raise UpFailed(f"Triton ended with code {code}")
    except KeyboardInterrupt:
        say("stopping")
    finally:
        _ignore_signals()
        triton.stop()


def _prepare(settings: Settings, model_repository: Path, say: Say) -> Runtime:
    """Triton's binaries, and a model where the repository's classifier has none yet."""
    # The preprocessor's OpenCV reads it when it is loaded: no picture there is larger than one may be here.
    os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(settings.max_image_pixels))
    runtime = ensure_runtime(default_cache_dir(), say)
    classifier = model_repository / CLASSIFIER
    if classifier.is_dir() and not any(classifier.glob("*/model.*")):
        # In a process of its own: this one stays as long as the server, and torch would stay with it.
        command = [sys.executable, "-m", "gateway", "model", "export", "--model-repository", str(model_repository)]
        if subprocess.run(command, check=False).returncode:
            raise UpFailed("the default model could not be exported; see above")
    return runtime


def _interrupt_on_signals() -> None:
    # SIGINT too: a shell starts what runs in its background with SIGINT ignored, and Python would leave it so.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)


def _ignore_signals() -> None:
    # A second Ctrl-C must not leave a half of it running.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # the signature of a signal handler
    raise KeyboardInterrupt


def _start_api(settings: Settings, triton_url: str) -> subprocess.Popen[bytes]:
    # In a session of its own, so that Ctrl-C reaches this process alone and the API ends before its Triton does.
    return subprocess.Popen(
        [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), sys.executable, "-m", "gateway", "serve"],
        env={**os.environ, variable("triton_url"): triton_url, variable("port"): str(settings.port)},
        start_new_session=True,
    )


def _wait_ready(settings: Settings, api: subprocess.Popen[bytes]) -> None:
    host = _reachable(settings.host)
    while True:
        _check(api)
        connection = http.client.HTTPConnection(host, settings.port, timeout=5.0)
        try:
            connection.request("GET", "/health/ready")
            if connection.getresponse().status == http.HTTPStatus.OK:
                return
        except OSError:
            pass  # it does not listen yet
        finally:
            connection.close()
        time.sleep(POLL_SECONDS)


def _check(api: subprocess.Popen[bytes]) -> None:
    if api.poll() is not None:
        raise UpFailed(f"the API ended with code {api.returncode}")


def _stop(process: subprocess.Popen[bytes], grace_seconds: float) -> None:
    process.terminate()
    try:
        process.wait(grace_seconds + 5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _reachable(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)  # noqa: S104  # what listens everywhere is reached here
