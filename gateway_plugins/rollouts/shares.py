"""Parsers of the settings of splits and shadow versions; they raise ValueError."""

import re
from collections.abc import Callable, Collection

from gateway.values.setting_values import Shares

_SHARES = re.compile(r"\s*(?P<model>[^=;:,\s]+)\s*=\s*(?P<shares>\d+:\d+(\s*,\s*\d+:\d+)*)\s*")


def split_of(text: str) -> Shares:
    """Parse the shares of each model's versions: flowers=1:90,2:10;birds=1:1."""
    return _by_model(
        text,
        any,
        wrong="is not a split, which is a model and versions with shares: flowers=1:90,2:10",
        together="1:90,2:10",
    )


def shadows_of(text: str) -> Shares:
    """Parse the percentages of each model's shadow versions: flowers=2:10;birds=3:5."""
    return _by_model(
        text,
        lambda percentages: bool(percentages) and all(1 <= percent <= 100 for percent in percentages),
        wrong=(
            "is not a shadow, which is a model and versions with percentages from 1 to 100, each version once: "
            "flowers=2:10"
        ),
        together="2:10,3:10",
    )


def _by_model(text: str, right: Callable[[Collection[int]], bool], *, wrong: str, together: str) -> Shares:
    found: Shares = {}
    for part in filter(str.strip, text.split(";")):
        name, numbers = _shares(part)
        if not right(numbers.values()):
            msg = f"{part.strip()!r} {wrong}"
            raise ValueError(msg)
        if name in found:
            msg = f"{name!r} is named twice: put its versions behind one name, such as {name}={together}"
            raise ValueError(msg)
        found[name] = numbers
    return found


def _shares(part: str) -> tuple[str, dict[str, int]]:
    """Parse NAME=VERSION:NUMBER,…; returns an empty name and no numbers if the text is malformed."""
    match = _SHARES.fullmatch(part)
    if match is None:
        return "", {}
    pairs = [share.split(":") for share in match["shares"].split(",")]
    shares = {str(int(version)): int(share) for version, share in pairs}
    return match["model"], shares if len(shares) == len(pairs) else {}
