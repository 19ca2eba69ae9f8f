"""Fetches the images that requests have as URLs."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urljoin
from weakref import WeakValueDictionary

import httpcore2

from gateway import __version__
from gateway.errors import ImageError, Overloaded, UnsupportedFormat, UploadTimeout
from gateway.inference.tasks import Tasks
from gateway.ingest.upload import (
    Upload,
    UploadLimits,
    UploadReference,
    Uploads,
    UploadsOrUrls,
    clean_filename,
)
from gateway.limits.bounds import Bound, FairQueue, Lease
from gateway.limits.pools import MIN_UPLOAD_BYTES_PER_SECOND, Pace, Pool, Uploader
from gateway.plugins.urls import metrics
from gateway.plugins.urls.addresses import AddressRule, Resolver
from gateway.plugins.urls.errors import FetchFailed, FetchTimeout, UrlNotAllowed
from gateway.plugins.urls.locations import Location, read_location, read_prefix
from gateway.plugins.urls.network import CheckedNetwork
from gateway.plugins.urls.settings import FETCH_TIMEOUT_SECONDS, MAX_FETCHES, UrlSettings
from gateway.settings import Settings
from gateway.timing import TimeSlice

OTHERS_PART = 4
"""One client may take all but 1/OTHERS_PART of the fetches of a process."""
FETCHES_PER_REQUEST = 8
"""Images of one request that are being fetched, or are complete and wait for the next steps."""
MAX_REDIRECTS = 3
CONNECT_SECONDS = 3.0
"""Time for a connection to one address, and for its TLS handshake."""
MAX_SMALL_PIECES, PIECE_BYTES = 1_000, 64
"""A body may arrive in MAX_SMALL_PIECES, and one more for each PIECE_BYTES: a piece costs more than its bytes."""
MEDIA_TYPES = ("image/", "application/octet-stream", "binary/octet-stream")
"""Content types of images; servers of files that do not know the type send the last two."""

# Nothing of the client's request is passed on: no key, no cookie, no trace. No header invites a compressed body.
HEADERS = {
    "User-Agent": f"triton-image-gateway/{__version__}",
    "Accept": "image/*, application/octet-stream;q=0.5",
    "Accept-Encoding": "identity",
}
_REDIRECTS = {301, 302, 303, 307, 308}


class UrlFetcher:
    """Fetches images for all requests of one process. `__call__` is the interface; see gateway.api.request_context.

    An image that cannot be fetched is an upload with an error. Fetched bytes count for the upload buffer.
    """

    def __init__(self, settings: Settings, uploads: Pool) -> None:
        self._settings = settings
        urls = UrlSettings.of(settings)
        self._allowed = tuple(map(read_prefix, urls.fetch_urls))
        self._rule = AddressRule(urls.fetch_networks)
        self._limits = UploadLimits.from_settings(settings)
        self._uploads = uploads
        self._fetches = Bound("max_fetches", MAX_FETCHES, metrics.FETCHES, metrics.FETCHES_LIMIT)
        self._client_fetches: WeakValueDictionary[str, Bound] = WeakValueDictionary()
        """The bounds of the clients whose requests have URLs at this moment."""
        self._queue = FairQueue(self._fetches)
        self._resolver = Resolver()
        # The system's certificates, or the file in SSL_CERT_FILE.
        self._ssl_context = httpcore2.default_ssl_context()

    async def __call__(self, images: UploadsOrUrls, *, key_bound: Bound | None, client: str) -> Uploads:
        """Yield the uploads of a request unchanged, and the images of URLs, each as soon as it is complete.

        The body is read while images are fetched. Raises the errors of `images`, RequestTooLarge if the fetched images
        have more than `max_request_bytes` together, and UploadTimeout if the request waits for its images for longer
        than `upload_timeout_seconds` in total. Everything ends with the iteration.
        """
        fetches: set[asyncio.Task[tuple[Upload, Download]]] = set()
        reading: asyncio.Task[Upload | UploadReference | None] | None = None
        ended = False
        left_seconds = self._settings.upload_timeout_seconds
        with ExitStack() as leases:
            request = _Request(leases, key_bound, self._limits.max_request_bytes, client, self._fetches_of(client))
            # The tasks end first: they read `images`, and hold the leases.
            async with aclosing(images), Tasks() as tasks:
                while fetches or not ended:
                    if reading is None and not ended and len(fetches) < FETCHES_PER_REQUEST:
                        reading = tasks.start(_next(images))
                        reading.add_done_callback(_retrieve)
                    waiting: set[asyncio.Task[Any]] = {*fetches}
                    if reading is not None:
                        waiting.add(reading)
                    began = time.monotonic()
                    done, _ = await asyncio.wait(
                        waiting, timeout=max(left_seconds, 0), return_when=asyncio.FIRST_COMPLETED
                    )
                    left_seconds -= time.monotonic() - began
                    if not done:
                        value = self._settings.upload_timeout_seconds
                        raise UploadTimeout(
                            f"The images did not arrive in time: the limit upload_timeout_seconds is {value:g} s.",
                            limit="upload_timeout_seconds",
                            value=value,
                        )
                    if (fetched := next((task for task in fetches if task in done), None)) is not None:
                        fetches.remove(fetched)
                        upload, download = fetched.result()
                        yield upload
                        download.lease.release()
                    elif reading is not None:
                        image, reading = reading.result(), None
                        if image is None:
                            ended = True
                        elif isinstance(image, Upload):
                            yield image  # the body is read on once this one has its permit
                        else:
                            fetch = tasks.start(self._fetch(image, request))
                            fetch.add_done_callback(_retrieve)
                            fetches.add(fetch)

    def _fetches_of(self, client: str) -> Bound:
        """The fetches that a client may have; some always remain for others."""
        bound = self._client_fetches.get(client)
        if bound is None:
            most = MAX_FETCHES - MAX_FETCHES // OTHERS_PART
            bound = self._client_fetches[client] = Bound("max_fetches", most)
        return bound

    def close(self) -> None:
        """Release the threads of lookups."""
        self._resolver.close()

    async def _fetch(self, reference: UploadReference, request: "_Request") -> tuple[Upload, "Download"]:
        """Fetch one image; the download has the lease of its bytes. An error is the upload's."""
        download = Download(self._limits, MIN_UPLOAD_BYTES_PER_SECOND, self._uploads, request)
        filename = reference.filename
        try:
            location = _read(reference.url)
            filename = filename or clean_filename(location.name)
            data = await self._in_time(location, download)
        except (ImageError, Overloaded) as error:
            download.lease.release()
            return Upload(reference.index, filename, b"", error), download
        finally:
            download.discard()
        return Upload(reference.index, filename, data), download

    def _check(self, location: Location) -> None:
        """Raise UrlNotAllowed unless a prefix contains a location."""
        if not any(prefix.contains(location) for prefix in self._allowed):
            host = f"{location.scheme}://{location.authority}"
            raise UrlNotAllowed(f"The service does not fetch images from {host}, or not from this path.")

    async def _in_time(self, location: Location, download: "Download") -> bytes:
        began: float | None = None
        self._check(location)
        try:
            async with asyncio.timeout(self._settings.max_wait_seconds) as timeout:
                download.timeout = timeout
                request = download.request
                fetches = {request.fetches: 1, self._fetches: 1}
                async with Lease(self._queue, fetches, request, request.client):
                    timeout.reschedule(asyncio.get_running_loop().time() + FETCH_TIMEOUT_SECONDS)
                    began = time.perf_counter()
                    return await self._follow(location, download)
        except TimeoutError:
            if download.eviction is not None:
                raise download.eviction from None
            if began is None:
                raise Overloaded(
                    "Too many images are being fetched: this one waited for "
                    f"{self._settings.max_wait_seconds:g} s. Retry later.",
                    limit="max_fetches",
                    value=MAX_FETCHES,
                ) from None
            raise FetchTimeout(
                f"The image did not arrive within {FETCH_TIMEOUT_SECONDS:g} s.",
                limit="fetch_timeout_seconds",
                value=FETCH_TIMEOUT_SECONDS,
            ) from None
        finally:
            if began is not None:
                metrics.FETCH_SECONDS.observe(time.perf_counter() - began)

    async def _follow(self, location: Location, download: "Download") -> bytes:
        """Fetch a location, and those to which it redirects: each is a new request under the same rules."""
        for _ in range(MAX_REDIRECTS + 1):
            network = CheckedNetwork(self._resolver, self._rule)
            async with _response(location, network, self._ssl_context) as response:
                answer = await self._body(network, response, download)
            if isinstance(answer, bytes):
                return answer
            location = self._redirected(location, answer)
        raise FetchFailed(f"The URL redirects more than {MAX_REDIRECTS} times.")

    async def _body(self, network: CheckedNetwork, response: httpcore2.Response, download: "Download") -> bytes | str:
        """The body of a response within all limits, or the URL to which it redirects."""
        headers = {name.lower(): value.decode("latin-1") for name, value in response.headers}
        if response.status in _REDIRECTS and b"location" in headers:
            return headers[b"location"]
        if response.status != HTTPStatus.OK:
            raise FetchFailed(f"The URL's host answers with status {response.status}.", upstream_status=response.status)
        if headers.get(b"content-encoding", "identity").lower() != "identity":
            raise FetchFailed("The URL's host sends a compressed body, although it was asked for none.")
        media_type = headers.get(b"content-type", MEDIA_TYPES[-1]).strip().lower()
        if not media_type.startswith(MEDIA_TYPES):
            raise UnsupportedFormat(f"The URL's host sends {media_type[:80]!r}, not an image.")
        if int(headers.get(b"content-length", "0")) > self._limits.max_file_bytes:
            raise self._limits.file_too_large()
        time_slice = TimeSlice()
        download.pace.wait()
        async with aclosing(response.aiter_stream()) as pieces:
            async for piece in pieces:
                network.progress()
                download.write(piece)
                await time_slice.pause_if_over()
                download.pace.wait()
        return download.finish()

    def _redirected(self, location: Location, target: str) -> Location:
        try:
            found = _read(urljoin(str(location), target))
            self._check(found)
        except (UrlNotAllowed, ValueError) as exc:  # the host's message is not shown
            raise UrlNotAllowed("The URL redirects to another one, from which no images are fetched.") from exc
        return found


class Download:
    """One download, a client of the upload buffer: when that is full, the slowest one may be evicted."""

    def __init__(self, limits: UploadLimits, min_bytes_per_second: float, uploads: Pool, request: "_Request") -> None:
        self._limits = limits
        self.request = request
        self.pace = Pace(min_bytes_per_second=min_bytes_per_second, grace_seconds=0, now=time.monotonic)
        uploader = Uploader(self.pace, self._evict)
        self.lease = request.leases.enter_context(uploads.lease(uploader, key_bound=request.key_bound))
        self.timeout: asyncio.Timeout | None = None
        self.eviction: Overloaded | None = None
        self._body = bytearray()
        self._pieces = 0

    def _evict(self, error: Overloaded) -> None:
        """Make the read in progress, or the next one, raise the error."""
        self.eviction = error
        if self.timeout is not None:
            with suppress(RuntimeError):  # it has ended meanwhile
                self.timeout.reschedule(0.0)

    def write(self, piece: bytes) -> None:
        """Take a piece of the body; raises FileTooLarge, RequestTooLarge, FetchFailed or Overloaded at a limit."""
        self.pace.receive(len(piece))
        metrics.FETCHED_BYTES.inc(len(piece))
        size = len(self._body) + len(piece)
        self._pieces += 1
        self.request.left_bytes -= len(piece)
        if size > self._limits.max_file_bytes:
            raise self._limits.file_too_large()
        if self.request.left_bytes < 0:
            raise self._limits.request_too_large()
        if self._pieces > MAX_SMALL_PIECES + size // PIECE_BYTES:
            raise FetchFailed("The URL's host sends the image in too many pieces.")
        self.lease.hold(size)
        self._body += piece

    def finish(self) -> bytes:
        """The whole body."""
        self.pace.receive(0)
        return bytes(self._body)

    def discard(self) -> None:
        """Free the received bytes, which an error's traceback would keep until the next garbage collection."""
        self._body = bytearray()


@dataclass(slots=True, eq=False)
class _Request:
    """The shared state of a request's images."""

    leases: ExitStack
    key_bound: Bound | None
    left_bytes: int
    client: str
    fetches: Bound


@asynccontextmanager
async def _response(
    location: Location, network: CheckedNetwork, ssl_context: ssl.SSLContext
) -> AsyncIterator[httpcore2.Response]:
    """The response to a GET on a connection of its own, whose body can be read in the context. Raises FetchFailed."""
    url = httpcore2.URL(scheme=location.scheme, host=location.host, port=location.port, target=location.target.encode())
    headers = [("Host", location.authority), *HEADERS.items()]
    connection = httpcore2.AsyncHTTPConnection(url.origin, ssl_context=ssl_context, network_backend=network)
    timeouts = {"timeout": {"connect": CONNECT_SECONDS}}
    try:
        async with connection.stream("GET", url, headers=headers, extensions=timeouts) as response:
            yield response
    except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as exc:
        raise FetchFailed("No connection to the URL's host was possible, or not with a valid certificate.") from exc
    except (httpcore2.NetworkError, httpcore2.ProtocolError, OSError) as exc:
        raise FetchFailed("The URL's host broke the connection or the protocol.") from exc
    finally:
        await network.aclose()


def _read(url: str) -> Location:
    """Read a URL; raises UrlNotAllowed."""
    try:
        return read_location(url)
    except ValueError as exc:
        raise UrlNotAllowed(f"The URL {exc}.") from exc


async def _next(images: UploadsOrUrls) -> Upload | UploadReference | None:
    return await anext(images, None)


def _retrieve(task: "asyncio.Task[Any]") -> None:
    """Mark a task's error as seen: it is raised where the task is awaited, unless the request ends before that."""
    if not task.cancelled():
        task.exception()
