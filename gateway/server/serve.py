"""The API in workers that share a port: computes their plan from the settings."""

import errno
import json
import math
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from typing import Any

import structlog

from gateway.errors import UserError
from gateway.limits.buffers import fitted
from gateway.logs import as_text, configure_logs
from gateway.machine.capacity import Costs, plan
from gateway.machine.cores import usable_cores
from gateway.machine.memory import memory_limit
from gateway.plugin_loading import environment_of, hooks
from gateway.server.workers import Plan
from gateway.settings import BesideTriton, Settings, variable

METRICS_BYTES = 8 * 2**20
"""Space for one worker's files of metrics, 1 MiB for each kind of metric, and as many of a worker that replaces it."""

log = structlog.get_logger("gateway")


class NoSpaceForWorkers(UserError):
    """The disk is too full for files that several workers share; the message names the folder."""


class AddressUnusable(UserError):
    """The API cannot listen on the configured address; the message names the port."""


def check_address(settings: Settings) -> None:
    """Raise AddressUnusable unless the API's ports are free, before anything slow has been started."""
    bound(settings).close()
    for port in hooks(settings).ports(settings):
        _bound(settings.host, port.number, variable(port.setting)).close()


def bound(settings: Settings) -> socket.socket:
    """A socket with the address of the API, on which nothing listens yet; raises AddressUnusable."""
    return _bound(settings.host, settings.port, f"--port or {variable('port')}")


def _bound(host: str, port: int, option: str) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as exc:
        listener.close()
        if exc.errno == errno.EADDRINUSE:
            msg = (
                f"port {port} on {host} is taken: another gateway may be running; "
                f"stop it or choose another port with {option}"
            )
        else:
            msg = f"cannot listen on {host} port {port}: {exc.strerror}"
        raise AddressUnusable(msg) from exc
    return listener


def serve(settings: Settings) -> None:
    """Run the API until SIGTERM or SIGINT, in workers; this process becomes their supervisor."""
    check_address(settings)
    configure_logs(settings)
    plan, listener = plan_to_serve(settings), bound(settings)
    listener.set_inheritable(True)
    command = [sys.executable, "-m", "gateway.server.supervisor", str(listener.fileno()), json.dumps(plan)]
    os.execv(sys.executable, command)  # noqa: S606  # Python itself


def plan_to_serve(settings: Settings) -> Plan:
    """The plan for the workers of `gateway serve`; raises NoSpaceForWorkers."""
    changed = _sized(settings)
    settings = settings.model_copy(update=changed)
    lowered = _fitted(settings)
    return plan_of(settings.model_copy(update=lowered), {**changed, **lowered})


def plan_of(settings: Settings, changed: Mapping[str, object]) -> Plan:
    """The plan of workers with these settings, of which some are `changed` from their environment."""
    if settings.workers > 1:
        folder, wanted = tempfile.gettempdir(), settings.workers * METRICS_BYTES
        if (free := shutil.disk_usage(folder).free) < wanted:
            raise NoSpaceForWorkers(
                f"{folder} has {free // 2**20} MiB of free space, and the metrics of {settings.workers} workers need "
                f"{wanted // 2**20} MiB: free some, set TMPDIR to another folder, or run one worker (GATEWAY_WORKERS=1)"
            )
    return Plan(
        (settings.host, settings.port),
        environment_of({field: value for field, value in changed.items() if value is not None}),
        settings.workers,
        settings.shutdown_delay_seconds + settings.shutdown_grace_seconds,
        "cache_secret" in settings.model_fields_set,
        as_text(settings),
    )


def _sized(settings: Settings) -> dict[str, Any]:
    """Settings that are not set, computed for a machine that a Triton shares."""
    if settings.beside_triton is BesideTriton.NO:
        return {}
    cores = settings.cores or usable_cores()
    # A container without GPUs cannot count them: as many as the cores can feed.
    gpus = math.ceil(cores) if settings.beside_triton is BesideTriton.GPU else 0
    chosen = settings.unset(plan(cores, gpus, Costs.read(settings.costs)).settings())
    log.info("settings_sized_to_machine", cores=cores, beside_triton=settings.beside_triton.value, **chosen)
    return chosen


def _fitted(settings: Settings) -> dict[str, Any]:
    """Defaults that are lowered to fit the memory that there is."""
    limit = memory_limit()
    lowered = fitted(settings, limit, with_triton=False) if limit is not None else {}
    if lowered:
        log.warning("settings_fitted_to_memory", limit_bytes=limit, **lowered)
    return lowered


def server_options(settings: Settings) -> dict[str, Any]:
    """Options of uvicorn for each process that serves the API."""
    # Imported here: the commands that start workers need neither.
    from gateway.server.connection import Connection
    from gateway.server.http import HttpHandler

    return {
        "host": settings.host,
        "port": settings.port,
        "loop": "uvloop",
        "http": partial(Connection, first_handler=HttpHandler),
        "ws": "none",  # Connection opens the WebSockets of plug-ins
        "ws_max_size": settings.max_file_bytes,
        "log_config": None,
        "log_level": settings.log_level.value,
        "access_log": False,
        "server_header": False,
        "timeout_graceful_shutdown": int(settings.shutdown_grace_seconds),
    }
