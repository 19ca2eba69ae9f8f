"""The quota of an API key: the options after the key in the key file, and of `gateway key add`.

rate=100/s          images per s, min or h
per-day=10000       images in a day of UTC
per-month=200000    images in a month of UTC
share=0.5           part of the images in flight
priority=bulk       interactive (the default) or bulk
models=cats,dogs    models that requests may name
routes=/predict     paths, with all below them
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

SECONDS = {"s": 1, "min": 60, "h": 3_600}
"""The windows of a rate."""
MAX_IMAGES = 999_999_999
MAX_NAMES, MAX_NAME_CHARACTERS = 100, 256
"""Models or routes of one quota, and characters of each."""

_RULES = {
    "rate": f"rate is a whole number of images per s, min or h, such as 100/s, and at most {MAX_IMAGES}",
    "per-day": f"per-day is a whole number of images, such as 10000, and at most {MAX_IMAGES}",
    "per-month": f"per-month is a whole number of images, such as 200000, and at most {MAX_IMAGES}",
    "share": "share is a part of the images in flight: above 0 and at most 1, such as 0.5",
    "priority": "priority is interactive or bulk",
    "models": f"models has up to {MAX_NAMES} names, separated by commas, such as cats,dogs",
    "routes": f"routes has up to {MAX_NAMES} paths, separated by commas, such as /predict,/v2",
}
_UNKNOWN = f"an option is none of {', '.join(_RULES)}"


class InvalidQuota(ValueError):
    """An option cannot be read; the message names it and does not repeat its value, which may be a pasted key."""


class Priority(StrEnum):
    """The class of a key's images while others wait."""

    INTERACTIVE = "interactive"
    BULK = "bulk"


class Period(StrEnum):
    """A calendar period of UTC, for which a key may have a number of images."""

    DAY = "day"
    MONTH = "month"


class Rate(NamedTuple):
    """A number of images in a window of time."""

    images: int
    unit: str
    """The window: a key of SECONDS."""

    @property
    def seconds(self) -> int:
        """Length of the window."""
        return SECONDS[self.unit]

    def __str__(self) -> str:
        return f"{self.images}/{self.unit}"


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_IMAGES)) and int(text)):
        raise ValueError
    return int(text)


def _rate(text: str) -> Rate:
    images, _, unit = text.partition("/")
    if unit not in SECONDS:
        raise ValueError
    return Rate(_whole(images), unit)


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

    def __str__(self) -> str:
        """The options, as in the key file."""
        values = {name: getattr(self, name) for name in self.model_dump(exclude_defaults=True)}
        texts = {name: ",".join(value) if name in {"models", "routes"} else value for name, value in values.items()}
        return " ".join(f"{name.replace('_', '-')}={text}" for name, text in texts.items())

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


def read_quota(options: Mapping[str, str]) -> Quota:
    """The quota of some options; raises InvalidQuota."""
    try:
        return Quota.model_validate(options)
    except ValidationError as exc:
        raise InvalidQuota(_RULES.get(str(exc.errors(include_input=False)[0]["loc"][0]), _UNKNOWN)) from None
