"""Refuses web pages of other origins while no API key is needed: any page can have a user's browser send requests."""

import socket
from fnmatch import fnmatchcase
from functools import lru_cache
from ipaddress import ip_address

from starlette.types import Scope

from gateway.errors import Forbidden
from gateway.settings import Settings, variable
from gateway.values.validation import shown

LOCAL_NAMES = ("*.localhost", "*.local", "*.internal")
"""Names that no public domain has."""
READS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing; a browser lets no page of another origin read the response."""
OWN_PAGE = frozenset({b"same-origin", b"none"})
"""Values of Sec-Fetch-Site for a page of this service, and for what the user does in the browser."""
KNOWN_HOSTS, MAX_HOST_BYTES = 256, 260
"""Values of the header Host whose check is kept, and the longest one: a name of 253 characters and a port."""


class OriginCheck:
    """Requires that a request names this service, and is sent by a program or by a page of this service.

    For a browser, a page whose name resolves to this machine for a moment (DNS rebinding) has the service's origin: it
    could read everything. So Host must be absent, an address, a name without a dot or in LOCAL_NAMES, which no page
    from the internet has, the machine's own name, or one of `hosts`.
    """

    def __init__(self, settings: Settings) -> None:
        self._origins = frozenset(settings.cors_origins)
        self._names = (*LOCAL_NAMES, socket.gethostname().lower(), settings.host.lower(), *settings.hosts)
        self._is_own = lru_cache(KNOWN_HOSTS)(self._names_service)

    def check(self, scope: Scope) -> None:
        """Raise Forbidden for a foreign Host and, unless the method only reads, for a page of another origin."""
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"")
        if len(host) > MAX_HOST_BYTES or not self._is_own(host):
            raise Forbidden(
                f"The service does not know the host {shown(host.decode('latin-1'))}: add it to {variable('hosts')}, "
                "or require API keys."
            )
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
        if (origin is None and site is None) or scope.get("method") in READS:
            return
        if not ("*" in self._origins or _text(origin) in self._origins or _is_own_page(origin, site, host)):
            raise Forbidden(
                "Pages of this origin may not send requests to the service; "
                f"{variable('cors_origins')} lists the origins that may."
            )

    def _names_service(self, value: bytes) -> bool:
        host = _text(value)
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0].removesuffix(".")
        return "." not in name or _is_address(name) or any(fnmatchcase(name, known) for known in self._names)


def _is_own_page(origin: bytes | None, site: bytes | None, host: bytes) -> bool:
    """Whether a browser says that the page has the service's origin; old ones send no Sec-Fetch-Site."""
    if site is not None:
        return site in OWN_PAGE
    return bool(host) and _text(origin).partition("://")[2] == _text(host)  # as text: an origin may be malformed


def _text(value: bytes | None) -> str:
    return (value or b"").decode("latin-1").lower()


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
