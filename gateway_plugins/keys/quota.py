"""What the requests of one API key may take: the options behind a key in the key file, and of `gateway key add`.

rate=100/s          images per s, min or h
burst=200           images at once, after a pause; as many as in one second by default
share=0.5           part of the images in flight
priority=bulk       interactive (the default) or bulk
models=cats,dogs    models that requests may name
routes=/predict     paths, with all below them
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

SECONDS = {"s": 1, "min": 60, "h": 3_600}
"""The units of time of a rate."""
MAX_RATE, MAX_BURST = 1_000_000, 1_000_000
"""Images per second, and images at once."""
MAX_NAMES, MAX_NAME_CHARACTERS = 100, 256
"""Models or routes of one quota, and characters of each."""

_RATE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)/(s|min|h)")
_NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,6})?")
_MODEL = re.compile(r"[^\s,#]+")
_ROUTE = re.compile(r"/[A-Za-z0-9._{}/-]*[A-Za-z0-9._{}-]")


class InvalidQuota(ValueError):
    """An option cannot be read; the message names it and does not repeat its value, which may be a pasted key."""


class Priority(StrEnum):
    """The class of a key's images while others wait."""

    INTERACTIVE = "interactive"
    BULK = "bulk"


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `burst` images at once, and `per_second` on average."""

    per_second: float
    burst: int
    text: str
    """The rate as it was written, such as 100/s."""

    @property
    def full_seconds(self) -> float:
        """Time in which `burst` images become available again."""
        return self.burst / self.per_second


@dataclass(frozen=True, slots=True)
class Quota:
    """The quota of one key; the default one limits nothing."""

    rate: Rate | None = None
    share: float | None = None
    priority: Priority = Priority.INTERACTIVE
    models: tuple[str, ...] = ()
    """The models that requests may name; empty for all."""
    routes: tuple[str, ...] = ()
    """The paths that requests may use, each with all below it; empty for all."""

    def __str__(self) -> str:
        """The options, as in the key file."""
        options = []
        if self.rate is not None:
            options += [f"rate={self.rate.text}", f"burst={self.rate.burst}"]
        if self.share is not None:
            # As `_NUMBER` reads it: no exponent, up to six decimals.
            options.append(f"share={self.share:.6f}".rstrip("0").rstrip("."))
        if self.priority is not Priority.INTERACTIVE:
            options.append(f"priority={self.priority}")
        options += [
            f"{name}={','.join(names)}" for name, names in (("models", self.models), ("routes", self.routes)) if names
        ]
        return " ".join(options)

    def allows_model(self, name: str) -> bool:
        """Whether requests may use a model."""
        return not self.models or name in self.models

    def allows_route(self, path: str) -> bool:
        """Whether requests may use a path."""
        return not self.routes or any(path == route or path.startswith(f"{route}/") for route in self.routes)


NO_QUOTA = Quota()


def read_quota(options: Mapping[str, str]) -> Quota:
    """The quota of some options; raises InvalidQuota."""
    if unknown := options.keys() - {"rate", "burst", "share", "priority", "models", "routes"}:
        raise InvalidQuota(f"{len(unknown)} of its options are none of rate, burst, share, priority, models and routes")
    if "burst" in options and "rate" not in options:
        raise InvalidQuota("burst is the number of images at once within a rate: it needs a rate, too")
    return Quota(
        rate=_rate(options["rate"], options.get("burst")) if "rate" in options else None,
        share=_share(options["share"]) if "share" in options else None,
        priority=_priority(options.get("priority", Priority.INTERACTIVE)),
        models=_names("models", options["models"], _MODEL) if "models" in options else (),
        routes=_names("routes", options["routes"], _ROUTE) if "routes" in options else (),
    )


def _rate(text: str, burst: str | None) -> Rate:
    match = _RATE.fullmatch(text)
    per_second = float(match[1]) / SECONDS[match[2]] if match else 0.0
    if not 0 < per_second <= MAX_RATE:
        raise InvalidQuota(f"rate is a number of images per s, min or h, such as 100/s, and at most {MAX_RATE}/s")
    if burst is None:
        return Rate(per_second, max(1, math.ceil(per_second)), text)
    if not burst.isascii() or not burst.isdigit() or not 1 <= int(burst[:9]) <= MAX_BURST or len(burst) > 9:
        raise InvalidQuota(f"burst is a whole number of images, from 1 to {MAX_BURST}")
    return Rate(per_second, int(burst), text)


def _share(text: str) -> float:
    share = float(text) if _NUMBER.fullmatch(text) else 0.0
    if not 0 < share <= 1:
        raise InvalidQuota("share is a part of the images in flight: above 0 and at most 1, such as 0.5")
    return share


def _priority(text: str) -> Priority:
    try:
        return Priority(text)
    except ValueError:
        raise InvalidQuota("priority is interactive or bulk") from None


def _names(option: str, text: str, pattern: re.Pattern[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    if len(names) > MAX_NAMES or not all(
        len(name) <= MAX_NAME_CHARACTERS and pattern.fullmatch(name) for name in names
    ):
        example = "cats,dogs" if option == "models" else "/predict,/v2"
        raise InvalidQuota(f"{option} has up to {MAX_NAMES} names, separated by commas, such as {example}")
    return names
