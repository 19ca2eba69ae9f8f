"""The API as a process, or as several that share a port."""

import errno
import math
import os
import secrets
import signal
import socket
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.supervisors import Multiprocess

from gateway.errors import UserError
from gateway.limits.buffers import fitted
from gateway.limits.connections import RESERVED
from gateway.logs import configure_logs
from gateway.plugins import environment_of, hooks
from gateway.server.connection import Connection
from gateway.server.http import HttpHandler
from gateway.server.workers import sharing
from gateway.settings import BesideTriton, LogLevel, Settings, variable
from gateway_machine.capacity import Costs, plan
from gateway_machine.cores import usable_cores
from gateway_machine.memory import memory_limit

ACCEPTED = RESERVED // 4
"""How many connections are accepted in one iteration of the event loop. uvloop accepts one of each listening socket:
with a single one, a client behind a thousand that connect at once would wait for a thousand iterations. Fewer than
RESERVED, so that a request that has come already is read before its connection has to leave the reserve."""
WORKER_SECONDS = 30
"""Longest time without an answer of a worker to its supervisor, which then replaces it. A worker answers once its
imports are done: on a loaded machine with two cores they took up to 20 s, and within uvicorn's 5 s it never started."""
START_FAILED = 3
"""The exit code of a service that could not start, as uvicorn's."""

log = structlog.get_logger("gateway")


class AddressUnusable(UserError):
    """The API cannot listen on the configured address; the message names the port."""


def check_address(settings: Settings) -> None:
    """Raise AddressUnusable unless the API's ports are free, before anything slow has been started."""
    _check_port(settings.host, settings.port, f"--port or {variable('port')}")
    for port in hooks(settings).ports(settings):
        _check_port(settings.host, port.number, variable(port.setting))


def _check_port(host: str, port: int, option: str) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as exc:
            if exc.errno == errno.EADDRINUSE:
                msg = (
                    f"port {port} on {host} is taken: another gateway may be running; "
                    f"stop it or choose another port with {option}"
                )
            else:
                msg = f"cannot listen on {host} port {port}: {exc.strerror}"
            raise AddressUnusable(msg) from exc


def serve(settings: Settings) -> None:
    """Run the API until SIGTERM or SIGINT; the workers read their settings from the environment."""
    check_address(settings)
    configure_logs(settings)
    settings = _fitted(_sized(settings))
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn stops in order and then raises the signal again: an ordered stop is no failure, so the exit code is 0.
        signal.signal(number, lambda *_: None)
    # Workers that share a port share Triton's cache as well; each would make up a secret of its own.
    os.environ.setdefault(variable("cache_secret"), secrets.token_hex(32))
    with sharing(settings.workers):
        run("gateway.app:create_app_from_environment", settings, workers=settings.workers)


def run(app: ASGIApp | str, settings: Settings, *, workers: int = 1) -> None:
    """Run an application until SIGTERM or SIGINT; several workers need the name of a function that makes it."""
    config = uvicorn.Config(app, factory=isinstance(app, str), workers=workers, **server_options(settings))
    sockets = listening_sockets(config)
    if config.workers > 1:
        Multiprocess(config, sockets=sockets).run()
        return
    server = uvicorn.Server(config)
    server.run(sockets)
    if not server.started:
        sys.exit(START_FAILED)


def listening_sockets(config: uvicorn.Config) -> list[socket.socket]:
    """The socket of the configured address, ACCEPTED times."""
    listener = config.bind_socket()
    return [listener, *(listener.dup() for _ in range(ACCEPTED - 1))]


def _sized(settings: Settings) -> Settings:
    """The settings, with those that are not set computed for a machine that a Triton shares."""
    if settings.beside_triton is BesideTriton.NO:
        return settings
    cores = settings.cores or usable_cores()
    # A container without GPUs cannot count them: as many as the cores can feed.
    gpus = math.ceil(cores) if settings.beside_triton is BesideTriton.GPU else 0
    sizes = plan(cores, gpus, Costs.read(settings.costs))
    chosen = settings.unset(sizes.settings())
    log.info("settings_sized_to_machine", cores=cores, beside_triton=settings.beside_triton.value, **chosen)
    export_environment(chosen)
    return settings.model_copy(update=chosen)


def _fitted(settings: Settings) -> Settings:
    """The settings, with defaults lowered to fit the memory that there is, also in the workers' environment."""
    limit = memory_limit()
    lowered = fitted(settings, limit, with_triton=False) if limit is not None else {}
    if lowered:
        log.warning("settings_fitted_to_memory", limit_bytes=limit, **lowered)
        export_environment(lowered)
    return settings.model_copy(update=lowered)


def server_options(settings: Settings) -> dict[str, Any]:
    """Options of uvicorn for whatever serves the API."""
    return {
        "host": settings.host,
        "port": settings.port,
        "loop": "uvloop",
        "http": partial(Connection, first_handler=HttpHandler),
        "ws": "none",  # Connection opens the WebSockets of plug-ins
        "ws_max_size": settings.max_file_bytes,
        "log_config": None,
        # That a worker died is a line of level info, of which our log makes a warning.
        "log_level": min(settings.log_level, LogLevel.INFO, key=list(LogLevel).index).value,
        "access_log": False,
        "server_header": False,
        "timeout_worker_healthcheck": WORKER_SECONDS,
        "timeout_graceful_shutdown": int(settings.shutdown_grace_seconds),
    }


def export_environment(overrides: Mapping[str, object]) -> None:
    """Set variables, for this process and the workers that it will start."""
    os.environ.update(environment_of({field: value for field, value in overrides.items() if value is not None}))
