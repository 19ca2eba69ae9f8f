"""URLs of images, and the prefixes of URLs that an operator allows: https and http.

A URL is read once, by the rules of browsers (WHATWG); what is allowed, and what is sent, are the parts of the result. A
path that servers read in different ways is refused.
"""

import re
from dataclasses import dataclass, replace
from urllib.parse import unquote

from pydantic import ValidationError
from pydantic_core import Url

HTTP_PORTS = {"https": 443, "http": 80}
ANY_HOST = "*"

# Servers read control characters, bytes that are never part of UTF-8, and what is no escape in different ways: %c0%ae
# and %u002e may be a dot.
_AMBIGUOUS_ESCAPE = re.compile(r"%(?:[01][0-9a-f]|7f|c[01]|f[5-9a-f]|(?![0-9a-f]{2}))", re.IGNORECASE)
_SEPARATORS = re.compile(r"[/\\]")


@dataclass(frozen=True, slots=True)
class Location:
    """Where an image is: a URL of HTTP."""

    scheme: str
    host: str
    """A name in lower case and in its ASCII form, or an IP address without brackets."""
    port: int
    path: str
    """From the first slash on, percent-encoded, without the segments . and .."""
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

    def contains(self, other: "Location") -> bool:
        """Whether an image is in this folder or below it, which `read_prefix` has read."""
        return (
            (self.scheme, self.port) == (other.scheme, other.port)
            and other.path.startswith(self.path)
            and (
                self.host in (ANY_HOST, other.host)
                or (self.host.startswith("*.") and other.host.endswith(self.host[1:]))
            )
        )

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"


def read_location(text: str) -> Location:
    """Read the URL of an image; raises ValueError with the reason, for the client, to follow "The URL"."""
    try:
        url = Url(text)
    except ValidationError:
        raise ValueError("is no valid URL, such as https://images.example.com/cat.jpg") from None
    if url.scheme not in HTTP_PORTS:
        raise ValueError("has another scheme than https and http")
    if url.username is not None or url.password is not None:
        raise ValueError("has a user or a password")
    host, port, path = url.host, url.port, url.path
    assert host is not None
    assert port is not None
    assert path is not None
    if _AMBIGUOUS_ESCAPE.search(path):
        raise ValueError("has a % that is no escape, or the escape of a control character or of no UTF-8")
    if _leaves_its_folder(path):
        raise ValueError("has the path segment . or ..")
    return Location(url.scheme, host.strip("[]"), port, path, f"?{url.query}" if url.query else "")


def read_prefix(text: str) -> Location:
    """Read a prefix of URLs, such as https://images.example.com/products/; raises ValueError.

    Its path is a folder, with or without a slash at its end. The host `*.example.com` stands for every name below
    example.com, and `*` for every host.
    """
    location = read_location(text)
    if location.query:
        msg = "has a query; an allowed prefix ends with its path"
        raise ValueError(msg)
    if location.host != ANY_HOST and "*" in location.host.removeprefix("*."):
        msg = "has a * that does not stand for all hosts, or for all names below one"
        raise ValueError(msg)
    path = location.path if location.path.endswith("/") else f"{location.path}/"
    return replace(location, path=path)


def _leaves_its_folder(path: str) -> bool:
    """Whether a server could read a path as one of another folder: it decodes escapes once, some proxies twice."""
    once = unquote(path)
    return any(map(_has_dots, (path, once, unquote(once))))


def _has_dots(path: str) -> bool:
    # Some servers cut parameters off a segment before they resolve it, and some spaces: /..;a=b/ and /..%20/
    return any(segment.partition(";")[0].rstrip(" ") in (".", "..") for segment in _SEPARATORS.split(path))
