"""The network beneath the HTTP client: it connects to the addresses that were checked, and to no other."""

import ssl
from collections.abc import Iterable
from typing import Any

import httpcore2

from gateway.plugins.urls.addresses import AddressRule, Resolver
from gateway.plugins.urls.errors import FetchFailed, UrlNotAllowed
from gateway.timing import TimeSlice

READ_BYTES = 16 * 1024
"""Bytes of one read: a TLS record. It bounds how long one piece that the client parses blocks the event loop."""
HEAD_READ_BYTES = 1024
"""Bytes of one read before the body: parsing interim responses takes longer than parsing a body of that size."""
MAX_OVERHEAD_BYTES = 32 * 1024
"""Bytes of headers, trailers and framing between two pieces of a body; one more read may exceed it."""


class Wire(httpcore2.AsyncNetworkStream):
    """A connection of which each piece of the body must arrive within some bytes of overhead."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._overhead = 0
        self._read_bytes = HEAD_READ_BYTES
        self._time_slice = TimeSlice()

    def progress(self) -> None:
        """A piece of the body has arrived."""
        self._overhead, self._read_bytes = 0, READ_BYTES

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109  # see httpcore2
        """See httpcore2; raises RemoteProtocolError if there is too much overhead."""
        if self._overhead >= MAX_OVERHEAD_BYTES:
            msg = f"more than {MAX_OVERHEAD_BYTES:,} bytes of headers or framing"
            raise httpcore2.RemoteProtocolError(msg)
        await self._time_slice.pause_if_over()
        data = await self._stream.read(min(max_bytes, self._read_bytes), timeout)
        self._overhead += len(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """See httpcore2."""
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        """See httpcore2."""
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore2.AsyncNetworkStream:
        """See httpcore2; the connection continues with TLS."""
        self._stream = await self._stream.start_tls(ssl_context, server_hostname, timeout)
        return self

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401  # see httpcore2
        """See httpcore2."""
        return self._stream.get_extra_info(info)


class CheckedNetwork(httpcore2.AsyncNetworkBackend):
    """Opens the one connection of a request.

    The host is resolved once, every address must pass the rule, and the connection goes to one of these addresses:
    there is no second lookup that could have another result. TLS still verifies the name of the host.
    """

    def __init__(self, resolver: Resolver, rule: AddressRule) -> None:
        self._resolver = resolver
        self._rule = rule
        self._network = httpcore2.AnyIOBackend()
        self._wire: Wire | None = None

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109
        local_address: str | None = None,  # noqa: ARG002  # see httpcore2
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,  # noqa: ARG002
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to the first address that accepts; raises UrlNotAllowed, FetchFailed or errors of httpcore2."""
        try:
            addresses = await self._resolver.addresses(host, port)
        except OSError as exc:
            raise FetchFailed(f"The name {host!r} could not be resolved; try again later.") from exc
        # One error for a name that does not exist and one that is not public: it must not show which names do.
        if not addresses or not all(map(self._rule.allows, addresses)):
            raise UrlNotAllowed(f"The host {host!r} does not exist, or has an address that is not public.")
        failure: Exception | None = None
        for address in addresses:
            try:
                self._wire = Wire(await self._network.connect_tcp(address, port, timeout))
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as exc:
                failure = exc
            else:
                return self._wire
        assert failure is not None
        raise failure

    def progress(self) -> None:
        """A piece of the body has arrived."""
        if self._wire is not None:
            self._wire.progress()

    async def aclose(self) -> None:
        """Close the connection, also if its request was cancelled during a handshake."""
        if self._wire is not None:
            await self._wire.aclose()
