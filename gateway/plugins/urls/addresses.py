"""The addresses of a host, and which of them the service may connect to."""

import asyncio
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any
from weakref import WeakValueDictionary

LOOKUPS, LOOKUPS_PER_DOMAIN = 64, 4
"""Names that one process looks up concurrently, in total and of one domain; the others wait."""
LOOKUP_SECONDS = 5.0
"""Longest wait for a lookup."""

IPAddress = IPv4Address | IPv6Address
IPNetwork = IPv4Network | IPv6Network
AddressInfo = tuple[Any, Any, int, str, tuple[Any, ...]]
"""A result of socket.getaddrinfo."""

NOT_PUBLIC = tuple(
    map(
        ip_network,
        (
            # IANA IPv4 Special-Purpose Address Registry, multicast, and reserved.
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",
            "240.0.0.0/4",
            # IANA IPv6 Special-Purpose Address Registry, within global unicast: Teredo and others, documentation, 6to4.
            "2001::/23",
            "2001:db8::/32",
            "2002::/16",
            "3fff::/20",
        ),
    )
)
"""IPv4 addresses that are not public, and IPv6 addresses within 2000::/3 that are not."""
METADATA = tuple(
    map(
        ip_network,
        (
            "169.254.0.0/16",  # AWS, Google, Azure, Oracle and others
            "168.63.129.16/32",  # Azure's agent
            "100.100.100.200/32",  # Alibaba
            "192.0.0.192/32",  # Oracle
            "fe80::/10",
            "fd00:ec2::/32",  # AWS: of machines, and of pods
            "fd20:ce::254/128",  # Google
        ),
    )
)
"""Addresses at which clouds give a machine's credentials to its programs: never allowed."""
GLOBAL_UNICAST = IPv6Network("2000::/3")
NAT64 = IPv6Network("64:ff9b::/96")
"""The well-known prefix (RFC 6052), by which hosts with IPv6 alone reach IPv4 addresses."""
HIDING = tuple(
    map(
        IPv6Network,
        (
            "::/96",  # IPv4-compatible
            "::ffff:0:0:0/96",  # IPv4-translated (RFC 2765)
            "64:ff9b:1::/48",  # for translators within a network (RFC 8215)
            "2001::/32",  # Teredo
            "2002::/16",  # 6to4
        ),
    )
)
"""Networks that are not public: their addresses contain an IPv4 address, such as that of a cloud's metadata service."""
_32_BITS = 0xFFFFFFFF
_ISATAP = 0x5EFE
"""Before an IPv4 address in the last 64 bits of any prefix, with or without the bit for global addresses (RFC 5214)."""


class AddressRule:
    """Allows public addresses and some networks."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = tuple(map(ip_network, networks))

    def allows(self, text: str) -> bool:
        """Whether the service may connect to an address, as the resolver returns it."""
        address = destination(ip_address(text))
        if _within(address, METADATA) or is_isatap(address):
            return False
        return is_public(address) or _within(address, self._networks)


def destination(address: IPAddress) -> IPAddress:
    """The IPv4 address that is reached by an IPv6 address which has one inside; any other address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return IPv4Address(int(address) & _32_BITS) if address in NAT64 else address


def is_isatap(address: IPAddress) -> bool:
    """Whether an address may lead through a tunnel to the IPv4 address inside it."""
    return isinstance(address, IPv6Address) and (int(address) >> 32) & ~(2 << 24) & _32_BITS == _ISATAP


def is_public(address: IPAddress) -> bool:
    """Whether an address is one of the public internet.

    By tables: `is_global` differs between versions of Python, and calls some addresses global that lead elsewhere.
    """
    if isinstance(address, IPv6Address) and (address not in GLOBAL_UNICAST or address.scope_id is not None):
        return False
    return not _within(address, NOT_PUBLIC)


class Resolver:
    """The system's resolver, in separate threads: slow names delay no other part of the service.

    A lookup cannot be cancelled. So a name whose servers never answer keeps its thread until the system gives up, often
    10 to 30 s. The names of one domain get few of the threads, and each caller waits for LOOKUP_SECONDS at most.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(LOOKUPS, thread_name_prefix="lookup")
        self._domains: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def addresses(self, host: str, port: int) -> list[str]:
        """The addresses of a host, each once, in the resolver's order; none if there is no such name.

        Raises OSError if the resolver fails or takes too long, so that another attempt may succeed.
        """
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                found = await self._look_up(host, port)
        except UnicodeError:  # a label of more than 63 characters
            return []
        except socket.gaierror as exc:
            if exc.errno == socket.EAI_AGAIN:
                raise
            return []
        return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))

    async def _look_up(self, host: str, port: int) -> list[AddressInfo]:
        domain = domain_of(host)
        slots = self._domains.get(domain)
        if slots is None:
            slots = self._domains[domain] = asyncio.Semaphore(LOOKUPS_PER_DOMAIN)
        await slots.acquire()
        loop = asyncio.get_running_loop()

        def release(_: object) -> None:
            with suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(slots.release)

        running = self._threads.submit(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        running.add_done_callback(release)  # a caller may give up before
        return await asyncio.wrap_future(running)

    def close(self) -> None:
        """Stop; does not wait for lookups."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def domain_of(host: str) -> str:
    """The last two labels of a name: one owner can create any number of names below them."""
    return ".".join(host.lower().rstrip(".").rsplit(".", 2)[-2:])


def _within(address: IPAddress, networks: Iterable[IPNetwork]) -> bool:
    return any(address in network for network in networks)
