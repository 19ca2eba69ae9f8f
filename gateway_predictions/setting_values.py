"""Parsers of the settings of the prediction log; they raise ValueError."""

import re

from gateway.values.setting_values import ALL_MODELS, ENDPOINT, listed

_PERCENT = re.compile(r"\d{1,3}(\.\d+)?")


def percentages_of(text: str) -> dict[str, float]:
    """Parse percentages by model, or one for all models: 1, or *=1,flowers=100."""
    found: dict[str, float] = {}
    for part in listed(text):
        name, equals, number = (word.strip() for word in part.rpartition("="))
        match = _PERCENT.fullmatch(number)
        if match is None or float(number) > 100 or (equals and not name):
            msg = f"{part!r} is not a percentage from 0 to 100, or one of a model: 1, or *=1,flowers=100"
            raise ValueError(msg)
        if (name or ALL_MODELS) in found:
            msg = f"{name or ALL_MODELS!r} is named twice"
            raise ValueError(msg)
        found[name or ALL_MODELS] = float(number)
    return found


def log_url(url: str) -> str:
    """Check the place of the prediction log: a folder, or a URL without user and password."""
    scheme, separator, rest = url.partition("://")
    if separator and (scheme.lower() in {"http", "https"}) and not ENDPOINT.fullmatch(url):
        msg = "must be the URL of a collector without user, query and fragment, such as http://127.0.0.1:8900/events"
        raise ValueError(msg)
    if not url.strip() or (separator and not (scheme and rest)):
        msg = "must be a folder, a bucket such as s3://bucket/log, or the URL of a collector such as http://host:8900/"
        raise ValueError(msg)
    return url
