"""The input of `gateway up`'s supervisor: its processes as data, and how to show them."""

import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from gateway.server.workers import Plan, Process


@dataclass(frozen=True, slots=True)
class Api:
    """The API of a service."""

    plan: Plan
    """The plan of its workers, except Triton's address."""
    listener: int
    """The descriptor of its socket."""
    replan: Sequence[str]
    """The command that prints the plan for the settings as they are then, or why there is none, in JSON."""
    record: Mapping[str, object]
    """Fields of the service's record."""
    ready: Sequence[str]
    """Hints about the service, line by line."""
    process: Process
    """The first worker's."""


@dataclass(frozen=True, slots=True)
class Table:
    """A Triton, by the arguments of EmbeddedTriton, and perhaps the API in front of it."""

    triton: Mapping[str, Any]
    start_timeout_seconds: float
    shown: Mapping[str, Any]
    """The arguments of Display."""
    hides_gpu_errors: bool
    """Whether Triton's errors about missing GPUs are left out, on a machine without a usable one."""
    began: float
    """When the command began, by time.monotonic()."""
    api: Api | None = None


def become_supervisor(table: Table) -> NoReturn:
    """Replace this process by one that keeps the processes of a table running: it takes a third of the memory."""
    if table.api is not None:
        for each in (table.api.listener, table.api.process.messages, table.api.process.variables):
            os.set_inheritable(each, True)  # noqa: FBT003  # its only form
    handle = os.memfd_create("table", 0)
    with open(handle, "wb", closefd=False) as file:
        pickle.dump(table, file)
    os.lseek(handle, 0, os.SEEK_SET)
    os.execv(sys.executable, [sys.executable, "-m", "gateway_local.supervise", str(handle)])  # noqa: S606  # Python
