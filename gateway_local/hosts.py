"""Addresses to listen on, and how to reach them from this machine."""

import socket

LOOPBACK = "127.0.0.1"
LAST_PORT = 65_535
_REACHED_AT = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # every interface includes loopback


def reachable(host: str) -> str:
    """The host to connect to for a server that listens on `host`; without brackets, for sockets and http.client."""
    return _REACHED_AT.get(host, host)


def authority(host: str, port: int) -> str:
    """`host:port` as URLs and gRPC targets have it (RFC 3986, section 3.2.2): an IPv6 address in brackets."""
    host = reachable(host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def free_port() -> int:
    """A TCP port of LOOPBACK that was free at the time of the call."""
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        return int(listener.getsockname()[1])
