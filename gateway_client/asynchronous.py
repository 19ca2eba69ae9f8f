"""The client for programs with an event loop."""

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import TracebackType
from typing import Any, TypedDict, Unpack

import httpx

from gateway_client.batches import Batches, ServiceLimits
from gateway_client.direct import DIRECT
from gateway_client.documents import (
    MAX_DOCUMENT_BYTES,
    MAX_PROBLEM_BYTES,
    Malformed,
    body_of,
    parsed,
    reading,
)
from gateway_client.errors import GatewayError, RequestError, ServiceError, unexpected_answer
from gateway_client.files import MAX_FILE_BYTES
from gateway_client.images import Source, images_of, images_of_async
from gateway_client.results import Model, Result
from gateway_client.sending import OnWait, Sending, SendOptions
from gateway_client.wire import ProgressTimeout, error_of, not_a_gateway

USER_AGENT = "triton-image-gateway-client"
Images = Source | Iterable[Source] | AsyncIterable[Source]
"""One image, or any number of them."""


class Options(TypedDict, total=False):
    """How the client sends images."""

    concurrency: int
    """Maximum number of concurrent requests, by default 4."""
    batch_images: int
    """Maximum number of images in one request, by default 64."""
    batch_bytes: int
    """Maximum bytes of images in one request, by default 16 MiB; with `concurrency` it bounds the memory."""
    retry_seconds: float
    """How long an image is retried after temporary errors, at the times that Retry-After gives; by default 60."""
    timeout_seconds: float
    """Longest time without progress, by default 120: between two parts sent or two results received."""
    transport: httpx.AsyncBaseTransport
    """For tests."""


class ModelOptions(TypedDict, total=False):
    """What `classify` and `embed` request from the service, as parameters of its HTTP interface."""

    model: str | None
    version: str | int | None
    one_version: bool
    """Whether all images use the model and the version of the first answer, even if they change meanwhile; by default
    True."""
    top_k: int | None
    timeout: float | None
    """Seconds for each image."""
    on_wait: OnWait | None
    """Called with the error and the seconds before each pause."""


class ClassifyOptions(ModelOptions, total=False):
    """Parameters of `classify`."""

    threshold: float | None
    labels: Sequence[str]
    strict: bool
    """Whether a damaged JPEG is an error; otherwise its result has `warning`."""


class EmbedOptions(ModelOptions, total=False):
    """Parameters of `embed`."""

    normalize: bool
    """Whether each embedding is scaled to length 1."""


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
        # Compressed bodies are refused, as they may be bombs, and no cookies are kept.
        headers = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity"}
        if api_key is not None:
            headers["X-API-Key"] = api_key
        self._http = httpx.AsyncClient(
            base_url=url if "://" in url else f"http://{url}",
            headers=headers,
            timeout=httpx.Timeout(options.get("timeout_seconds", 120.0), connect=10.0, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=max(1, self.concurrency)),
            transport=options.get("transport"),
            mounts=DIRECT,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            follow_redirects=False,  # the API key must not go to another host
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

    async def classify(self, images: Images, **options: Unpack[ClassifyOptions]) -> AsyncGenerator[Result, None]:
        """Yield one result for each image, as it is ready; `Result.index` is the image's position in the input.

        An image that cannot be classified has its error in its result. Raises RequestError and ServiceError for errors
        of the whole call, such as `model_not_found` or `unreachable`, and TypeError for input that is not an image.
        """
        async with aclosing(self._lists(images, self._send_options("predict", **options))) as lists:
            async for ready in lists:
                for result in ready:
                    yield result

    async def embed(self, images: Images, **options: Unpack[EmbedOptions]) -> AsyncGenerator[Result, None]:
        """Yield one result for each image, with its embedding as `Result.embedding`; otherwise as `classify`.

        Raises RequestError `no_features` if the model has no embeddings. `top_k` adds that many classes to each result.
        """
        async with aclosing(self._lists(images, self._send_options("embed", **options))) as lists:
            async for ready in lists:
                for result in ready:
                    yield result

    async def models(self) -> list[Model]:
        """The models of the service."""
        document = await self._get("models")
        with self._checked("models"):
            return [
                Model(
                    each["name"],
                    each.get("version"),
                    tuple(map(str, each["versions"])),
                    each.get("ready") is True,
                    tuple(map(str, each["labels"])),
                    each["name"] == document.get("default"),
                )
                for each in document.get("models", ())
            ]

    async def version_in_use(self, model: str | None = None) -> str:
        """The version that answers for a model, or for the default one; for runs of many processes, which should agree.

        Raises RequestError `model_not_found`.
        """
        for each in await self.models():
            if each.version is not None and (each.default if model is None else each.name == model):
                return each.version
        raise RequestError(f"The service has no model {model!r} that is loaded.", code="model_not_found")

    async def limits(self) -> ServiceLimits:
        """The service's limits for one request; fetched once."""
        if self._limits is None:
            try:
                document = await self._get("limits")
            except GatewayError as exc:
                if exc.code != "not_found":
                    raise
                self._limits = ServiceLimits()
            else:
                with self._checked("limits"):
                    known = ServiceLimits.__dataclass_fields__
                    given = [each for each in document["limits"] if each["name"] in known]
                    self._limits = ServiceLimits(**{each["name"]: max(1, int(each["value"])) for each in given})
                most = min(self._limits.max_file_bytes, MAX_FILE_BYTES)
                self._limits = replace(self._limits, max_file_bytes=most)
        return self._limits

    @contextmanager
    def _checked(self, path: str) -> Iterator[None]:
        try:
            with reading():
                yield
        except Malformed as exc:
            raise unexpected_answer(f"{self._http.base_url}{path} is not a gateway's response: {exc}.") from exc

    def _unreachable(self, reason: str) -> ServiceError:
        return ServiceError(
            f"There is no gateway at {self._http.base_url}: {reason}. Start one with `gateway up`, or give the address "
            "of one that runs.",
            code="unreachable",
        )

    async def _get(self, path: str) -> dict[str, Any]:
        """Fetch a JSON object; raises GatewayError."""
        try:
            async with ProgressTimeout(self._http.timeout.read), self._http.stream("GET", path) as response:
                body = await body_of(response, MAX_DOCUMENT_BYTES if response.is_success else MAX_PROBLEM_BYTES)
        except TimeoutError as exc:
            reason = f"it has not answered within {self._http.timeout.read:g} s"
            raise self._unreachable(reason) from exc
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL) as exc:
            reason = str(exc).rstrip(".") or type(exc).__name__
            raise self._unreachable(reason) from exc
        with self._checked(path):
            if not response.is_success:
                raise error_of(response, body)
        try:
            return parsed(body)
        except Malformed as exc:
            raise not_a_gateway(response) from exc

    def _send_options(
        self, path: str, *, on_wait: OnWait | None = None, one_version: bool = True, **given: object
    ) -> SendOptions:
        labels = given.pop("labels", None) or None
        given["labels"] = [labels] if isinstance(labels, str) else labels
        if path == "embed":
            given["encoding_format"] = "base64"
        parameters = {name: value for name, value in given.items() if value is not None and value is not False}
        return SendOptions(parameters, self.retry_seconds, on_wait, path, one_version)

    async def _lists(self, images: Images, options: SendOptions) -> AsyncGenerator[list[Result], None]:
        """Yield lists of results: all that are ready at the time."""
        limits = await self.limits()
        most = limits.max_file_bytes
        named = images_of_async(images, most) if isinstance(images, AsyncIterable) else images_of(images, most)
        batches = Batches(named, limits, most_images=self.batch_images, most_bytes=self.batch_bytes)
        async with aclosing(Sending(self._http, batches, options, self.concurrency).results()) as lists:
            async for ready in lists:
                yield ready
