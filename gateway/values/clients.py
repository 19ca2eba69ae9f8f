"""The identity of a client, and the addresses of hosts."""

from collections.abc import Mapping
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from typing import Any


def client_of(key: str, address: str) -> str:
    """The name of a client: its API key, or its address without one; an IPv6 network of 64 bits is one client."""
    if key:
        return f"key {key}"
    with suppress(ValueError):
        if isinstance(parsed := ip_address(address), IPv6Address):
            return f"address {int(parsed) >> 64:x}"
    return f"address {address}"


def address_of(scope: Mapping[str, Any]) -> str:
    """The address from which a request came, in its ASGI scope; "" for a Unix socket."""
    return str((scope.get("client") or ("",))[0])


def is_address(host: str) -> bool:
    """Whether a host is an IP address and not a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(address: str) -> bool:
    """Whether `host:port` is on this machine, by its name or number alone."""
    host = address.rpartition(":")[0].strip("[]")
    return host in {"localhost", "::1"} or host.startswith("127.")
