"""URLs of images, and the prefixes of URLs that an operator allows: https and http.

Stricter than RFC 3986: what two programs may read in two ways is refused.
"""

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import unquote

HTTP_PORTS = {"https": 443, "http": 80}
ANY_HOST = "*"
MAX_HOST_CHARACTERS = 253

_PARTS = re.compile(r"(?P<scheme>[A-Za-z0-9+.-]+)://(?P<authority>[^/?#]*)(?P<rest>.*)", re.DOTALL)
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?"
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_PORT = re.compile(r":(?P<port>[1-9][0-9]{0,4})")
_ESCAPE = r"%[0-9A-Fa-f]{2}"
_PATH = re.compile(rf"(?:[A-Za-z0-9\-._~:/@!$&'()*+,;=]|{_ESCAPE})*")
_QUERY = re.compile(rf"(?:[A-Za-z0-9\-._~:/?@!$&'()*+,;=\[\]]|{_ESCAPE})*")
# Servers read control characters, and bytes that are never part of UTF-8, in different ways: %c0%ae may be a dot.
_AMBIGUOUS_ESCAPE = re.compile(r"%(?:[01][0-9a-f]|7f|c[01]|f[5-9a-f])", re.IGNORECASE)
_SEPARATORS = re.compile(r"[/\\]")
_INVALID_HOST = "has an invalid host: write a name in its ASCII form (xn--…), without a dot at its end"


@dataclass(frozen=True, slots=True)
class Location:
    """Where an image is: a URL of HTTP."""

    scheme: str
    host: str
    """A name in lower case, or an IP address without brackets."""
    port: int
    path: str
    """From the first slash on, as it was written."""
    query: str = ""
    """With its question mark, if there is one."""

    @property
    def authority(self) -> str:
        """The host, and the port unless it is the scheme's own: the value of the header Host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == HTTP_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def target(self) -> str:
        """The target of a GET request."""
        return self.path + self.query

    @property
    def name(self) -> str:
        """The last segment of the path, for people to read."""
        return unquote(self.path.rpartition("/")[2])

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"


@dataclass(frozen=True, slots=True)
class Prefix:
    """A scheme, a host, a port and a folder, such as https://images.example.com/products/.

    The host `*.example.com` stands for every name below example.com, and `*` for every host.
    """

    location: Location

    def contains(self, location: Location) -> bool:
        """Whether an image is in this folder or below it."""
        own = self.location
        return (
            (own.scheme, own.port) == (location.scheme, location.port)
            and location.path.startswith(own.path)
            and (
                own.host in (ANY_HOST, location.host)
                or (own.host.startswith("*.") and location.host.endswith(own.host[1:]))
            )
        )


def read_location(text: str) -> Location:
    """Read the URL of an image; raises ValueError with the reason, for the client, to follow "The URL"."""
    return _read(text, wildcard=False)


def read_prefix(text: str) -> Prefix:
    """Read a prefix of URLs, whose path is a folder, with or without a slash at its end; raises ValueError."""
    location = _read(text, wildcard=True)
    if location.query:
        msg = "has a query; an allowed prefix ends with its path"
        raise ValueError(msg)
    path = location.path if location.path.endswith("/") else f"{location.path}/"
    return Prefix(Location(location.scheme, location.host, location.port, path))


def _read(text: str, *, wildcard: bool) -> Location:
    parts = _PARTS.fullmatch(text)
    if parts is None:
        raise ValueError("has no scheme and host, such as https://images.example.com/cat.jpg")
    scheme, authority = parts["scheme"].lower(), parts["authority"]
    if scheme not in HTTP_PORTS:
        raise ValueError("has another scheme than https and http")
    if "@" in authority:
        raise ValueError("has a user or a password")
    if not authority.isascii():
        raise ValueError(_INVALID_HOST)
    host, port = _host_and_port(authority.lower(), wildcard=wildcard)
    path, question, query = parts["rest"].partition("#")[0].partition("?")
    if not _PATH.fullmatch(path) or not _QUERY.fullmatch(query):
        raise ValueError("has characters that must be percent-encoded")
    if _AMBIGUOUS_ESCAPE.search(path):
        raise ValueError("has an escape of a control character, or one that is not UTF-8")
    if _leaves_its_folder(path):
        raise ValueError("has the path segment . or ..")
    return Location(scheme, host, port or HTTP_PORTS[scheme], path or "/", question + query)


def _host_and_port(authority: str, *, wildcard: bool) -> tuple[str, int | None]:
    if authority.startswith("["):
        host, bracket, port = authority[1:].partition("]")
        if not bracket or "%" in host:
            raise ValueError("has an invalid IPv6 address")
        try:
            host = ipaddress.IPv6Address(host).compressed
        except ValueError:
            raise ValueError("has an invalid IPv6 address") from None
    else:
        host, colon, port = authority.partition(":")
        port = colon + port
        name = host.removeprefix("*.") if wildcard else host
        if not (wildcard and host == ANY_HOST) and (len(host) > MAX_HOST_CHARACTERS or not _HOST.fullmatch(name)):
            raise ValueError(_INVALID_HOST)
    if not port:
        return host, None
    match = _PORT.fullmatch(port)
    if match is None or int(match["port"]) > 65_535:
        raise ValueError("has an invalid port")
    return host, int(match["port"])


def _leaves_its_folder(path: str) -> bool:
    """Whether a server could read a path as one of another folder: it decodes escapes once, some proxies twice."""
    once = unquote(path)
    return any(map(_has_dots, (path, once, unquote(once))))


def _has_dots(path: str) -> bool:
    # Some servers cut parameters off a segment before they resolve it, and some spaces: /..;a=b/ and /..%20/
    return any(segment.partition(";")[0].rstrip(" ") in (".", "..") for segment in _SEPARATORS.split(path))
