"""Builds the backend from the settings: names resolved to addresses, health checkers, TLS."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import grpc
import structlog

from gateway import metrics
from gateway.errors import UserError
from gateway.inference.backend import PROBE_SECONDS
from gateway.settings import Settings, variable
from gateway.triton.backend import TritonBackend
from gateway.triton.client import TritonEndpoint
from gateway.triton.codecs import Codecs
from gateway.triton.health.checker import HealthChecker
from gateway.triton.health.recovery import RecoveringChecker
from gateway.triton.health.state import ExpectedModels, HealthState, Schedule
from gateway.triton.pool import TritonPool
from gateway.triton.replica import Replica
from gateway.values.clients import is_address

log = structlog.get_logger("gateway")

Connect = Callable[[str], TritonEndpoint]
"""Makes the endpoint of host:port."""
LOOKUP_SECONDS = 5.0

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
        self._found: dict[str, list[str]] = {}
        """For each url the addresses of its last lookup that succeeded."""
        self._failing: set[str] = set()

    async def current(self) -> list[str]:
        """The current addresses, each once, in a stable order; a name that never had any stays a name. Never raises."""
        resolved = await asyncio.gather(*(self._resolve(url) for url in self._urls))
        return list(dict.fromkeys(address for addresses in resolved for address in addresses))

    async def _resolve(self, url: str) -> list[str]:
        host, _, port = url.rpartition(":")
        if is_address(host.strip("[]")):
            return [url]
        try:
            found = await self._lookup(host, int(port))
            if not found:
                raise OSError("the name has no addresses")  # noqa: TRY301  # handled like the resolver's own error
        except OSError as exc:  # TimeoutError is one
            metrics.DNS_FAILURES.inc()
            kept = self._found.get(url, [])
            if url not in self._failing:
                self._failing.add(url)
                log.warning("dns_failed", name=host, cause=str(exc) or type(exc).__name__, kept=kept)
            return kept or [url]
        self._failing.discard(url)
        self._found[url] = found
        return found


def create_backend(settings: Settings, connect: Connect | None = None) -> TritonBackend:
    """Create the backend for the settings; the caller starts it inside the event loop that uses it."""
    return TritonBackend(open_pool(settings, connect), settings)


def open_pool(
    settings: Settings,
    connect: Connect | None = None,
    *,
    on_demand: bool = False,
    lookup: Lookup = look_up,
    schedule: Schedule | None = None,
) -> TritonPool:
    """The Triton servers of the settings; with `on_demand`, requests load other models than the default ones.

    `connect` makes the endpoint of an address.
    """
    connect = connect or connector(settings)
    schedule = schedule or Schedule(settings.ready_interval_seconds, PROBE_SECONDS)
    codecs = Codecs.of_settings(settings)

    def make(address: str, model_changed: Callable[[str], None]) -> Replica:
        endpoint = connect(address)
        expected = ExpectedModels(settings.model, load=settings.load_models, on_demand=on_demand)
        health = HealthState(address, expected, schedule)
        kind = RecoveringChecker if settings.heal else HealthChecker
        checker = kind(endpoint, health, model_changed=model_changed, codecs=codecs)
        return Replica(endpoint, health, checker, codecs)

    return TritonPool(Addresses(settings.triton_url, lookup).current, make, schedule.interval_seconds)


def connector(settings: Settings) -> Connect:
    """Makes endpoints for the settings: with TLS if a CA is set; raises TlsError.

    The files are read once, as Triton reads its own: after they were renewed, both have to be restarted.
    """
    ca_file = settings.triton_ca_file
    if ca_file is None:
        return TritonEndpoint
    context, fields = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ["triton_ca_file"]
    certificate = key = None
    try:
        context.load_verify_locations(cafile=ca_file)
        if settings.triton_certificate_file is not None and settings.triton_key_file is not None:
            fields = ["triton_certificate_file", "triton_key_file"]
            # Without a password the terminal would prompt for one.
            context.load_cert_chain(settings.triton_certificate_file, settings.triton_key_file, password="")
            certificate, key = settings.triton_certificate_file.read_bytes(), settings.triton_key_file.read_bytes()
    except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
        files = " or ".join(f"{variable(field)}={getattr(settings, field)}" for field in fields)
        raise TlsError(f"{files}: {exc}; it must be in PEM form, and a key unencrypted and of its certificate") from exc
    credentials = grpc.ssl_channel_credentials(ca_file.read_bytes(), key, certificate)
    return partial(TritonEndpoint, credentials=credentials, server_name=server_name(settings))


class TlsError(UserError):
    """A certificate or key for the connection to Triton cannot be used; the message names its variable."""


def server_name(settings: Settings) -> str:
    """The name to expect: the gateway connects to addresses, but a certificate usually has the name that has them."""
    if settings.triton_server_name is not None:
        return settings.triton_server_name
    host = settings.triton_url[0].rpartition(":")[0].strip("[]")
    return "" if is_address(host) else host
