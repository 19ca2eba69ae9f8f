"""Reads the settings from the environment; errors list the allowed values of each wrong variable."""

import difflib
import os
import re
from enum import Enum
from pathlib import Path

from dotenv import dotenv_values
from pydantic import SecretStr, ValidationError
from pydantic_core import ErrorDetails

from gateway.errors import UserError
from gateway.plugin_loading import settings_class
from gateway.settings import (
    ENV_FILE,
    ENV_PREFIX,
    Allowed,
    Settings,
    given_variables,
    is_secret,
    mark,
    variable,
)
from gateway.values.variables import NO_SETTINGS

_BY_KIND: dict[object, str] = {
    Path | None: "the path of a file",
    tuple[str, ...]: "a list with commas",
    dict[str, dict[str, int]]: "MODEL=VERSION:SHARE,…;…",
    dict[str, float]: "a percentage, or MODEL=PERCENTAGE,…",
    str | None: "a URL",
    SecretStr | None: "text of 16 to 1024 characters, random by default",
}
_KUBERNETES = re.compile(r"_SERVICE_(HOST|PORT)|_PORT_\d+_(TCP|UDP|SCTP)")


class SettingsError(UserError):
    """A GATEWAY_ variable is unknown, not allowed or contradicts another; the message names it and what is allowed."""


def load_settings() -> Settings:
    """Read the settings; raises SettingsError with a line for each wrong or unknown variable."""
    sentences = [_unknown(name) for name in given_variables() if _is_unknown(name)]
    try:
        settings = settings_class()()
    except ValidationError as exc:
        # A value computed from a wrong one is not reported again.
        sentences += [_wrong(error) for error in exc.errors() if error["type"] != "default_factory_not_called"]
    if sentences:
        raise SettingsError(*sentences)
    return settings


def allowed(field: str) -> str:
    """The allowed values of a setting, such as "a whole number from 1 to 64"."""
    info = settings_class().model_fields[field]
    if (said := mark(info, Allowed)) is not None:
        return said.values
    bounds = {
        name: getattr(bound, name)
        for bound in info.metadata
        for name in ("ge", "gt", "le", "lt", "min_length", "max_length")
        if hasattr(bound, name)
    }
    kind = info.annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        *choices, last = (str(choice.value) for choice in kind)
        return f"{', '.join(choices)} or {last}"
    if kind is bool:
        return "true or false"
    if kind in {int, float}:
        words = {"gt": "above", "ge": "from", "lt": "below", "le": "to" if "ge" in bounds else "up to"}
        number = "a whole number" if kind is int else "a number"
        return " ".join([number, *(f"{word} {bounds[name]}" for name, word in words.items() if name in bounds)])
    if kind is str and "max_length" in bounds:
        return f"text of {bounds.get('min_length', 0)} to {bounds['max_length']} characters"
    return _BY_KIND.get(kind, "")


def _is_unknown(name: str) -> bool:
    field = name.lower().removeprefix(ENV_PREFIX.lower())
    return name.upper().startswith(ENV_PREFIX) and name not in NO_SETTINGS and field not in settings_class().variables()


def _unknown(name: str) -> str:
    if _KUBERNETES.search(name):
        hint = "Kubernetes sets it for a Service named gateway; put enableServiceLinks: false into the pod's spec"
    else:
        # Without the prefix, which would make all names similar.
        near = difflib.get_close_matches(name[len(ENV_PREFIX) :].lower(), settings_class().variables(), n=1)
        hint = f"did you mean {variable(near[0])}?" if near else "docs/reference/settings.md lists all of them"
    return f"{name}{_in_file(name)} is not a setting: {hint}"


def _wrong(error: ErrorDetails) -> str:
    reason = error["msg"].removeprefix("Value error, ")
    if not error["loc"]:
        return reason
    field = str(error["loc"][0])
    may_be = allowed(field)
    if may_be and error["type"] != "value_error":
        reason = f"must be {may_be}"
    name = variable(field)
    # As the operator wrote it, not as it was parsed: 20GB, not 20000000000.
    written = given_variables().get(name, error["input"])
    given = "…" if is_secret(settings_class(), field) else repr(written)
    return f"{name}={given}{_in_file(name)}: {reason}"


def _in_file(name: str) -> str:
    """A mention of the .env file, if the variable is set there and not in the environment."""
    return f" in {ENV_FILE}" if name in dotenv_values(ENV_FILE) and name not in os.environ else ""
