"""Parsers for settings that are more than a number or a name; they raise ValueError."""

import ipaddress
import re
from collections.abc import Callable, Collection
from fractions import Fraction

from gateway.values.locations import read_prefix

ALL_MODELS = "*"
"""Stands for every model that is not named."""
Shares = dict[str, dict[str, int]]
"""A number for each version of each model."""

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110, section 5.6.2
_SHARES = re.compile(r"\s*(?P<model>[^=;:,\s]+)\s*=\s*(?P<shares>\d+:\d+(\s*,\s*\d+:\d+)*)\s*")
_ORIGIN = re.compile(r"https?://[^/\s?#@*]+", re.IGNORECASE)
_AMOUNT = re.compile(r"(?P<number>\d+(\.\d+)?) ?(?P<unit>[A-Za-z]+)")
_PERCENT = re.compile(r"\d{1,3}(\.\d+)?")
_GROUPED = re.compile(r"\d{1,3}(,\d{3})+")
_BYTES = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_RATE_STORE = re.compile(r"(?P<scheme>(?:redis|valkey)s?://(?=[^/])|unix:///)(?P<rest>\S+)")
_ENDPOINT = re.compile(r"https?://[^/\s?#@]+(/[^\s?#]*)?", re.IGNORECASE)


def if_text(parse: Callable[[str], object]) -> Callable[[object], object]:
    """A validator that parses texts, such as those of variables, and leaves other values unchanged."""
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
    if separator and (scheme.lower() in {"http", "https"}) and not _ENDPOINT.fullmatch(url):
        msg = "must be the URL of a collector without user, query and fragment, such as http://127.0.0.1:8900/events"
        raise ValueError(msg)
    if not url.strip() or (separator and not (scheme and rest)):
        msg = "must be a folder, a bucket such as s3://bucket/log, or the URL of a collector such as http://host:8900/"
        raise ValueError(msg)
    return url


def listed(text: str) -> tuple[str, ...]:
    """Split a text at commas."""
    return tuple(filter(None, map(str.strip, text.split(","))))


def header_name(name: str) -> str:
    """Check the name of an HTTP header."""
    if not _HEADER_NAME.fullmatch(name):
        msg = "is not a header name, such as X-Client-ID"
        raise ValueError(msg)
    return name


def otlp_endpoint(url: str) -> str:
    """Check the URL of an OTLP collector."""
    if not _ENDPOINT.fullmatch(url):
        msg = "must be the http:// or https:// URL of an OTLP/HTTP collector, such as http://127.0.0.1:4318"
        raise ValueError(msg)
    return url


def rate_store(url: str) -> str:
    """Check the URL of a Redis or Valkey, and convert Valkey's scheme to Redis'; the URL may have a password."""
    match = _RATE_STORE.fullmatch(url)
    if match is None:
        msg = "must be the URL of a Redis or Valkey, such as redis://host:6379/0, rediss://… for TLS, or unix:///path"
        raise ValueError(msg)
    return match["scheme"].replace("valkey", "redis") + match["rest"]


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


def url_prefixes(given: tuple[str, ...]) -> tuple[str, ...]:
    """Check prefixes of URLs."""
    for text in given:
        try:
            read_prefix(text)
        except ValueError as exc:
            msg = f"{text!r} {exc}; a prefix is such as https://images.example.com/products/, https://*.example.com, "
            msg += "gs://bucket/ or s3://bucket/folder/"
            raise ValueError(msg) from exc
    return given


def networks(given: tuple[str, ...]) -> tuple[str, ...]:
    """Check networks of IP addresses."""
    for text in given:
        try:
            ipaddress.ip_network(text)
        except ValueError:
            msg = f"{text!r} is not a network, such as 10.20.0.0/16 or fd00:1234::/48"
            raise ValueError(msg) from None
    return given


def triton_addresses(given: tuple[str, ...]) -> tuple[str, ...]:
    """Check a list of at least one host:port."""
    for address in given or ("",):
        host, colon, port = address.rpartition(":")
        if not (colon and host and "/" not in host and port.isdigit() and 0 < int(port) < 65_536):
            msg = "must be host:port of Triton's gRPC endpoint, such as 127.0.0.1:8001, or several with commas"
            raise ValueError(msg)
    return given


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
