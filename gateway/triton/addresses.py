"""From what GATEWAY_TRITON_URL says to the addresses behind it."""

import asyncio
import ipaddress
import socket
from collections.abc import Iterable


async def resolve(urls: Iterable[str]) -> list[str]:
    """Each `host:port` as the addresses that its name has now, in a steady order; a name without any stays a name."""
    resolved = await asyncio.gather(*(_resolve(url) for url in urls))
    return list(dict.fromkeys(address for addresses in resolved for address in addresses))


async def _resolve(url: str) -> list[str]:
    host, _, port = url.rpartition(":")
    if _is_address(host.strip("[]")):
        return [url]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError:
        return [url]
    addresses = sorted({str(sockaddr[0]) for *_, sockaddr in found})
    v4 = [address for address in addresses if ":" not in address]
    # Names often have an address of each kind for one server; two endpoints would be made of it.
    return [f"{address}:{port}" for address in v4] or [f"[{address}]:{port}" for address in addresses]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
