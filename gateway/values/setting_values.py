"""Parsers for settings that are more than a number or a name; they raise ValueError."""

import re
from collections.abc import Callable
from fractions import Fraction

ALL_MODELS = "*"
"""Stands for every model that is not named."""

_ORIGIN = re.compile(r"https?://[^/\s?#@*]+", re.IGNORECASE)
_HOST = re.compile(r"\*|(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_AMOUNT = re.compile(r"(?P<number>\d+(\.\d+)?) ?(?P<unit>[A-Za-z]+)")
_GROUPED = re.compile(r"\d{1,3}(,\d{3})+")
_BYTES = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def if_text(parse: Callable[[str], object]) -> Callable[[object], object]:
    """A validator that parses texts, such as environment variables, and leaves other values unchanged."""
    return lambda value: parse(value) if isinstance(value, str) else value


def unless_none(parse: Callable[[str], str]) -> Callable[[str | None], str | None]:
    """A validator that leaves None unchanged."""
    return lambda value: None if value is None else parse(value)


def not_empty(without: str) -> Callable[[object], object]:
    """A validator that refuses an empty path: it must not switch keys or TLS off by mistake."""

    def check(path: object) -> object:
        if path == "":
            msg = f"must be the path of a file; leave it unset for {without}"
            raise ValueError(msg)
        return path

    return check


def number_of(field: str, text: str) -> str:
    """Convert a number with a unit (20 MiB, 30 s) to bytes or seconds; any other text is returned unchanged."""
    if _GROUPED.fullmatch(text):
        return text.replace(",", "")
    match = _AMOUNT.fullmatch(text)
    if match is None:
        return text
    if "seconds" in field and match["unit"] == "s":
        return match["number"]
    if "bytes" in field and match["unit"] in _BYTES:
        nbytes = Fraction(match["number"]) * _BYTES[match["unit"]]
        return str(nbytes) if nbytes.denominator == 1 else text
    return text


def listed(text: str) -> tuple[str, ...]:
    """Split a text at commas."""
    return tuple(filter(None, map(str.strip, text.split(","))))


def origins(given: tuple[str, ...]) -> tuple[str, ...]:
    """Check origins of web pages, and convert them to the form that browsers send; a single * means all."""
    if "*" in given and len(given) > 1:
        msg = "* means every origin; do not combine it with others"
        raise ValueError(msg)
    for origin in given:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            msg = f"{origin!r} is not an origin: use a scheme, a host and, if needed, a port, such as https://app.example:8443"
            raise ValueError(msg)
    # Browsers send scheme and host in lower case.
    return tuple(origin.lower() for origin in given)


def hosts(given: tuple[str, ...]) -> tuple[str, ...]:
    """Check names of hosts, and convert them to lower case; *.NAME means all names that end in .NAME."""
    given = tuple(name.lower().removesuffix(".") for name in given)
    for name in given:
        if not _HOST.fullmatch(name):
            msg = f"{name!r} is not the name of a host: use images.example or *.example, without a scheme and a port"
            raise ValueError(msg)
    return given


def triton_addresses(given: tuple[str, ...]) -> tuple[str, ...]:
    """Check a list of at least one host:port."""
    for address in given or ("",):
        host, colon, port = address.rpartition(":")
        if not (colon and host and "/" not in host and port.isdigit() and 0 < int(port) < 65_536):
            msg = "must be host:port of Triton's gRPC endpoint, such as 127.0.0.1:8001, or several with commas"
            raise ValueError(msg)
    return given
