"""The error of everything that is added to a repository, and the words of libraries' own errors."""

from importlib import import_module
from typing import Any

from gateway.errors import UserError
from gateway.values.extras import install


class ModelError(UserError):
    """A model cannot be added or used as it is; the message names the reason and what to do instead."""


def library(name: str, wanted_by: str, extra: str = "converters") -> Any:  # noqa: ANN401  # a module
    """A module that an extra installs, imported where it is used; raises ModelError if it is not installed."""
    try:
        return import_module(name)
    except ImportError as exc:
        raise ModelError(f"{wanted_by} need {exc.name}: {install(extra)}") from exc


def first_line(exc: Exception | str) -> str:
    """The first line of an error, without the arguments that some libraries list behind it."""
    lines = str(exc).strip().splitlines() or [type(exc).__name__]
    return lines[0][:300].rstrip(".")
