"""Resolves the names in GATEWAY_TRITON_URL to addresses."""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable

import structlog

from gateway import metrics

log = structlog.get_logger("gateway")

LOOKUP_SECONDS = 5.0
MISSES = 2
"""Successful lookups in a row without an address after which it is dropped: DNS answers may be incomplete or flap."""

Lookup = Callable[[str, int], Awaitable[list[str]]]
"""From a name and a port to host:port of each address; raises OSError."""


async def look_up(host: str, port: int) -> list[str]:
    """Resolve with the system's resolver; raises OSError."""
    async with asyncio.timeout(LOOKUP_SECONDS):
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = sorted({str(sockaddr[0]) for *_, sockaddr in found})
    v4 = [address for address in addresses if ":" not in address]
    # A server often has an IPv4 and an IPv6 address; both together would count as two endpoints.
    return [f"{address}:{port}" for address in v4] or [f"[{address}]:{port}" for address in addresses]


class Addresses:
    """The addresses of some `host:port`. A lookup that fails or finds nothing keeps the addresses of the last one."""

    def __init__(self, urls: Iterable[str], lookup: Lookup = look_up) -> None:
        self._urls = tuple(urls)
        self._lookup = lookup
        self._found: dict[str, dict[str, int]] = {}
        """For each url its addresses, and how many lookups in a row have missed each."""
        self._failing: set[str] = set()

    async def current(self) -> list[str]:
        """The current addresses, each once, in a stable order; a name that never had any stays a name. Never raises."""
        resolved = await asyncio.gather(*(self._resolve(url) for url in self._urls))
        return list(dict.fromkeys(address for addresses in resolved for address in addresses))

    async def _resolve(self, url: str) -> list[str]:
        host, _, port = url.rpartition(":")
        if is_address(host.strip("[]")):
            return [url]
        before = self._found.get(url, {})
        try:
            found = await self._lookup(host, int(port))
            if not found:
                raise OSError("the name has no addresses")  # noqa: TRY301  # handled like the resolver's own error
        except OSError as exc:  # TimeoutError is one
            metrics.DNS_FAILURES.inc()
            if url not in self._failing:
                self._failing.add(url)
                log.warning("dns_failed", name=host, cause=str(exc) or type(exc).__name__, kept=sorted(before))
            return list(before) or [url]
        if url in self._failing:
            self._failing.discard(url)
            log.info("dns_answers", name=host)
        missed = {address: misses + 1 for address, misses in before.items() if address not in found}
        kept = {address: misses for address, misses in missed.items() if misses < MISSES}
        self._found[url] = {**dict.fromkeys(found, 0), **kept}
        return list(self._found[url])


def is_address(host: str) -> bool:
    """Whether a host is an IP address and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
