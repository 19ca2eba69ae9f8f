"""The client for programs with an event loop."""

import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from types import TracebackType
from typing import Any, TypedDict, Unpack

import httpx

from .batches import Batches, ServiceLimits
from .errors import NotFound
from .faults import UnexpectedAnswer, Unreachable
from .pictures import Picture, Source, number_of, pictures_of, pictures_of_async
from .results import Model, Progress, Result
from .sending import Asked, OnWait, Sending
from .throttle import Throttle
from .wire import error_of

USER_AGENT = "triton-gateway-client"
OnProgress = Callable[[Progress], None]


class Options(TypedDict, total=False):
    """How pictures are sent."""

    concurrency: int
    """Requests that are out at once at most, by default 4; fewer while the service says that it is too busy."""
    batch_images: int
    """Pictures in one request at most, by default 64."""
    batch_bytes: int
    """Bytes of pictures in one request at most, by default 16 MiB; with `concurrency` it bounds the memory."""
    retry_seconds: float
    """How long a picture is sent again, as Retry-After says, while the service cannot answer it; by default 60."""
    timeout_seconds: float
    """Longest silence on a connection, by default 120."""
    transport: httpx.AsyncBaseTransport
    """For tests."""


class AsyncGateway:
    """A gateway at a URL, or a host:port for http; use it as an async context manager, or call `aclose`."""

    def __init__(
        self, url: str = "http://127.0.0.1:8080", api_key: str | None = None, **options: Unpack[Options]
    ) -> None:
        self.concurrency = options.get("concurrency", 4)
        self.batch_images = options.get("batch_images", 64)
        self.batch_bytes = options.get("batch_bytes", 16 * 2**20)
        self.retry_seconds = options.get("retry_seconds", 60.0)
        self._limits: ServiceLimits | None = None
        headers = {"User-Agent": USER_AGENT}
        if api_key is not None:
            headers["X-API-Key"] = api_key
        self._http = httpx.AsyncClient(
            base_url=url if "://" in url else f"http://{url}",
            headers=headers,
            timeout=httpx.Timeout(options.get("timeout_seconds", 120.0), connect=10.0, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=max(1, self.concurrency)),
            transport=options.get("transport"),
        )

    async def __aenter__(self) -> "AsyncGateway":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def classify(
        self,
        images: Source | Iterable[Source] | AsyncIterable[Source],
        *,
        model: str | None = None,
        version: str | int | None = None,
        top_k: int | None = None,
        threshold: float | None = None,
        labels: Sequence[str] = (),
        timeout: float | None = None,  # noqa: ASYNC109  # the service's own parameter, in seconds for each picture
        frames: int | str | None = None,
        progress: OnProgress | None = None,
        on_wait: OnWait | None = None,
    ) -> AsyncGenerator[Result, None]:
        """Yield one result for each picture, as it is ready; `Result.index` shows which one it is.

        What cannot be classified has its error in its result. `frames` (a number, "all", or "every:0.5s") gives each
        frame of animated files an answer of its own, in `Result.frames`. Raises the RequestError that befalls them all
        (such as ModelNotFound or Unauthorized), Unreachable where there is no gateway, and TypeError for what is not a
        picture.
        """
        asked = self._asked(model, version, top_k, threshold, labels, timeout, frames, on_wait)
        async with aclosing(self._each(images, asked, progress)) as results:
            async for result in results:
                yield result

    async def embed(
        self,
        images: Source | Iterable[Source] | AsyncIterable[Source],
        *,
        model: str | None = None,
        version: str | int | None = None,
        normalize: bool = False,
        top_k: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  # as of `classify`
        progress: OnProgress | None = None,
        on_wait: OnWait | None = None,
    ) -> AsyncGenerator[Result, None]:
        """Yield one result for each picture, with its vector as `Result.embedding`; otherwise as `classify`.

        The model must be one that gives vectors; NoFeatures is raised where it is not. `normalize` scales each vector
        to length 1; `top_k` asks for so many classes as well.
        """
        asked = self._asked_vectors(model, version, top_k, timeout, on_wait, normalize=normalize)
        async with aclosing(self._each(images, asked, progress)) as results:
            async for result in results:
                yield result

    async def models(self) -> list[Model]:
        """What can be asked."""
        document = await self._get("models")
        return [
            Model(each["name"], each["version"], tuple(each["versions"]), each["ready"], tuple(each["labels"]))
            for each in document["models"]
        ]

    async def limits(self) -> ServiceLimits:
        """What one request may bring; asked for once."""
        if self._limits is None:
            try:
                document = await self._get("limits")
            except NotFound:
                self._limits = ServiceLimits()
            else:
                values = {each["name"]: each["value"] for each in document["limits"]}
                self._limits = ServiceLimits(
                    **{name: values[name] for name in ServiceLimits.__dataclass_fields__ if name in values}
                )
        return self._limits

    async def _get(self, path: str) -> dict[str, Any]:
        """A JSON object; raises GatewayError."""
        try:
            response = await self._http.get(path)
        except httpx.TransportError as exc:
            reason = str(exc).rstrip(".") or type(exc).__name__
            raise Unreachable(f"There is no gateway at {self._http.base_url}: {reason}.") from exc
        if not response.is_success:
            raise error_of(response)
        try:
            document = response.json()
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise UnexpectedAnswer(f"{response.url} does not answer like a gateway; is the URL right?")
        return document

    def _asked(
        self,
        model: str | None,
        version: str | int | None,
        top_k: int | None,
        threshold: float | None,
        labels: Sequence[str],
        timeout_seconds: float | None,
        frames: int | str | None,
        on_wait: OnWait | None,
    ) -> Asked:
        given: dict[str, Any] = {
            "model": model,
            "version": None if version is None else str(version),
            "top_k": top_k,
            "threshold": threshold,
            "labels": ([labels] if isinstance(labels, str) else list(labels)) or None,
            "timeout": timeout_seconds,
            "frames": None if frames is None else str(frames),
        }
        parameters = {name: value for name, value in given.items() if value is not None}
        return Asked(parameters, self.retry_seconds, on_wait)

    def _asked_vectors(
        self,
        model: str | None,
        version: str | int | None,
        top_k: int | None,
        timeout_seconds: float | None,
        on_wait: OnWait | None,
        *,
        normalize: bool,
    ) -> Asked:
        asked = self._asked(model, version, top_k, None, (), timeout_seconds, None, on_wait)
        parameters = {**asked.parameters, "normalize": normalize, "encoding_format": "base64"}
        return replace(asked, parameters=parameters, path="embed")

    async def _each(
        self, images: Source | Iterable[Source] | AsyncIterable[Source], asked: Asked, progress: OnProgress | None
    ) -> AsyncGenerator[Result, None]:
        """Results as they are ready, one by one."""
        async with aclosing(self._lists(images, asked, progress)) as lists:
            async for ready in lists:
                for result in ready:
                    yield result

    async def _lists(
        self, images: Source | Iterable[Source] | AsyncIterable[Source], asked: Asked, progress: OnProgress | None
    ) -> AsyncGenerator[list[Result], None]:
        """Results as they are ready, several at a time where several are."""
        pictures: Iterator[Picture] | AsyncIterator[Picture]
        total, started = number_of(images), time.monotonic()
        done = failed = 0
        limits = await self.limits()
        most = limits.max_file_bytes
        pictures = pictures_of_async(images, most) if isinstance(images, AsyncIterable) else pictures_of(images, most)
        batches = Batches(pictures, limits, most_images=self.batch_images, most_bytes=self.batch_bytes)
        sending = Sending(self._http, batches, asked, Throttle(self.concurrency))
        async with aclosing(sending.results()) as lists:
            async for ready in lists:
                if progress is not None:
                    for result in ready:
                        done += 1
                        failed += not result.ok
                        progress(Progress(done, failed, total, time.monotonic() - started))
                yield ready
