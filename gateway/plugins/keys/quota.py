"""The quota of an API key: the options after the hash in the key file, and of `gateway key add`.

rate=100/s          images per s, min or h
per-day=10000       images in a day of UTC
per-month=200000    images in a month of UTC
share=0.5           part of the images in flight
priority=bulk       interactive (the default) or bulk
models=cats,dogs    models that requests may name
routes=/predict     paths, with all below them
"""

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

SECONDS = {"s": 1, "min": 60, "h": 3_600}
"""The windows of a rate."""
MAX_NAMES, MAX_NAME_CHARACTERS = 100, 256
"""Models or routes of one quota, and characters of each."""

_RULES = {
    "rate": "rate is a whole number of images, of nine digits at most, per s, min or h, such as 100/s",
    "per-day": "per-day is a whole number of images, of nine digits at most, such as 10000",
    "per-month": "per-month is a whole number of images, of nine digits at most, such as 200000",
    "share": "share is a part of the images in flight: above 0 and at most 1, such as 0.5",
    "priority": "priority is interactive or bulk",
    "models": f"models has up to {MAX_NAMES} names, separated by commas, such as cats,dogs",
    "routes": f"routes has up to {MAX_NAMES} paths, separated by commas, such as /predict,/v2",
}
_IMAGES = r"[1-9][0-9]{0,8}"
_RATE = re.compile(rf"(?P<images>{_IMAGES})/(?P<unit>{'|'.join(SECONDS)})")
_UNKNOWN = f"an option is none of {', '.join(_RULES)}"


class Priority(StrEnum):
    """The class of a key's images while others wait."""

    INTERACTIVE = "interactive"
    BULK = "bulk"


class Period(StrEnum):
    """A calendar period of UTC, for which a key may have a number of images."""

    DAY = "day"
    MONTH = "month"


def utc_now() -> datetime:
    """The time by which days and months begin."""
    return datetime.now(UTC)


class Window(NamedTuple):
    """The day or month that a count is for."""

    begins: datetime
    ends: datetime

    @classmethod
    def now(cls, period: Period) -> "Window":
        """The current one."""
        begins = utc_now().replace(hour=0, minute=0, second=0, microsecond=0)
        if period is Period.DAY:
            return cls(begins, begins + timedelta(days=1))
        begins = begins.replace(day=1)
        return cls(begins, (begins + timedelta(days=31)).replace(day=1))

    @property
    def left_seconds(self) -> int:
        """Whole seconds until it ends, at least 1."""
        return max(math.ceil((self.ends - utc_now()).total_seconds()), 1)


class Rate(NamedTuple):
    """A number of images in a window of time."""

    images: int
    unit: str
    """The window: a key of SECONDS."""

    @property
    def seconds(self) -> int:
        """Length of the window."""
        return SECONDS[self.unit]


def _rate(text: str) -> Rate:
    match = _RATE.fullmatch(text)
    if match is None:
        raise ValueError
    return Rate(int(match["images"]), match["unit"])


def _whole(text: str) -> int:
    if re.fullmatch(_IMAGES, text) is None:
        raise ValueError
    return int(text)


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(text.split(",")))


_Images = Annotated[int | None, BeforeValidator(_whole)]
_Name = StringConstraints(max_length=MAX_NAME_CHARACTERS, pattern=r"^[^\s,#]+$")
_Path = StringConstraints(max_length=MAX_NAME_CHARACTERS, pattern=r"^/[A-Za-z0-9._{}/-]*[A-Za-z0-9._{}-]$")
_Listed = (BeforeValidator(_names), Field(max_length=MAX_NAMES))


class Quota(BaseModel):
    """The quota of one key; the default one limits nothing."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, alias_generator=lambda name: name.replace("_", "-")
    )

    rate: Annotated[Rate | None, BeforeValidator(_rate)] = None
    per_day: _Images = None
    per_month: _Images = None
    share: Annotated[float | None, Field(gt=0, le=1, allow_inf_nan=False)] = None
    priority: Priority = Priority.INTERACTIVE
    models: Annotated[tuple[Annotated[str, _Name], ...], *_Listed] = ()
    """The models that requests may name; empty for all."""
    routes: Annotated[tuple[Annotated[str, _Path], ...], *_Listed] = ()
    """The paths that requests may use, each with all below it; empty for all."""

    @property
    def periods(self) -> dict[Period, int]:
        """The images that may come in each period that has a limit."""
        limits = {Period.DAY: self.per_day, Period.MONTH: self.per_month}
        return {period: images for period, images in limits.items() if images is not None}

    def allows_model(self, name: str) -> bool:
        """Whether requests may use a model."""
        return not self.models or name in self.models

    def allows_route(self, path: str) -> bool:
        """Whether requests may use a path."""
        return not self.routes or any(path == route or path.startswith(f"{route}/") for route in self.routes)


NO_QUOTA = Quota()


def read_quota(options: Sequence[str]) -> Quota:
    """The quota of some options, such as rate=100/s.

    Raises ValueError, whose message names the option and does not repeat its value, which may be a pasted key.
    """
    if any(option.split() != [option] for option in options):
        raise ValueError("an option has a space; write it as NAME=VALUE, such as share=0.5")
    values = dict(option.partition("=")[::2] for option in options)
    if len(values) < len(options):
        raise ValueError("an option is there twice")
    try:
        return Quota.model_validate(values)
    except ValidationError as exc:
        raise ValueError(_RULES.get(str(exc.errors(include_input=False)[0]["loc"][0]), _UNKNOWN)) from None
