"""The result of a check."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """`ok`; `warn`: it works, but not as well as it could; `fail`: it will not work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: what was checked, what was found, and what to do about it."""

    check: str
    level: Level
    text: str
    advice: str = ""


def ok(check: str, text: str) -> Finding:
    """A check without problems."""
    return Finding(check, Level.OK, text)


def warn(check: str, text: str, advice: str = "") -> Finding:
    """A check whose subject works, but not as well as it could."""
    return Finding(check, Level.WARN, text, advice)


def fail(check: str, text: str, advice: str = "") -> Finding:
    """A check whose subject will not work."""
    return Finding(check, Level.FAIL, text, advice)
