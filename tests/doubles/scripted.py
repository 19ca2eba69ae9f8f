"""An inference server, decoders and a clock that a test controls step by step."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

from gateway.decoder.pillow import read_header
from gateway.errors import GatewayError
from gateway.inference.backend import BatchLimits, Call, CallLimits
from gateway.inference.request import Image, Observer, Observers, Step
from gateway.inference.request_spec import RequestSpec
from gateway.inference.result import Prediction, Result, Row
from gateway.inference.service import InferenceService
from gateway.ingest.decoder_pool import Decoded
from gateway.ingest.image_formats import Header, ImageFormat, Size
from gateway.ingest.resizing import Resize
from gateway.ingest.upload import Upload, UploadLimits
from gateway.limits.account import Account
from gateway.limits.admission import Admission
from gateway.plugins.rollouts.shadow import Shadows
from gateway.predict import image_steps
from gateway.values.rollout import Rollout
from tests.doubles.backend import StubBackend
from tests.settings import Settings


def label_of(image: bytes) -> str:
    """The class that ScriptedBackend sees in an image; different images have different ones."""
    return hashlib.blake2b(image, digest_size=8).hexdigest()


def row_of(image: bytes) -> Row:
    """The row of an image in an answer."""
    return Row(predictions=(Prediction(label_of(image), 0, 0.9),))


class Loop(asyncio.SelectorEventLoop):
    """An event loop that runs step by step, with a clock that only the test moves."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0
        self.services: list[Scripted] = []
        """The services that a test has made."""
        self.unhandled: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.unhandled.append(context))
        self._clocks = [
            # By the real clock, a busy machine would end time slices, and so add steps.
            mock.patch("gateway.timing.time", SimpleNamespace(monotonic=self.time, perf_counter=self.time)),
        ]
        for clock in self._clocks:
            clock.start()

    def time(self) -> float:
        return self.now

    def turn(self, times: int = 1) -> None:
        """Let everything that is ready take one step."""
        for _ in range(times):
            self.call_soon(self.stop)
            self.run_forever()

    def settle(self) -> None:
        """Turn until nothing moves any more, short of time passing."""
        self.turn(60)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.turn()

    def finish(self, task: "asyncio.Task[Any]") -> Any:
        """The result of a task that needs nothing but turns."""
        self.settle()
        assert task.done(), "it still waits for something"
        return task.result()

    def close(self) -> None:
        for clock in self._clocks:
            clock.stop()
        super().close()


@dataclass
class PendingCall:
    """A call that the test answers."""

    call: Call
    outcome: "asyncio.Future[Sequence[Row]]"
    cancelled: bool = False

    @property
    def pending(self) -> bool:
        return not self.outcome.done()

    def answer(self, version: str = "1", row: Row | None = None) -> None:
        """Answer with the row of each image, or with the same one for all."""
        version = self.call.model_version or version
        rows = [replace(row or row_of(image), model_version=version) for image in self.call.images]
        self.outcome.set_result(rows)

    def fail(self, error: Exception) -> None:
        self.outcome.set_exception(error)


class ScriptedBackend(StubBackend):
    """Keeps every call until the test answers it, or answers at once where `at_once` is an answer or an error."""

    def __init__(self, *, supports_cancellation: bool = True) -> None:
        super().__init__()
        self.supports_cancellation = supports_cancellation
        self.calls: list[PendingCall] = []
        self.wanted: Resize | None = None
        self.at_once: Callable[[PendingCall], None] | None = None
        self.limits: CallLimits | None = None
        self.limited: set[tuple[str, str, int]] = set()
        """The models, their versions and the images for which limits of calls were requested."""
        self.alone: set[tuple[bytes, str, str]] = set()
        """The images that must have separate calls, each with its model and version."""

    @property
    def pending(self) -> list[PendingCall]:
        return [call for call in self.calls if call.pending]

    async def infer(self, call: Call) -> Sequence[Row]:
        pending = PendingCall(call, asyncio.get_running_loop().create_future())
        self.calls.append(pending)
        if self.at_once is not None:
            self.at_once(pending)
        try:
            return await pending.outcome
        except asyncio.CancelledError:
            pending.cancelled = True
            raise

    def needs_own_call(self, signature: bytes, model_name: str, model_version: str) -> bool:
        return (signature, model_name, model_version) in self.alone

    def call_limits(self, model_name: str, model_version: str, max_images: int) -> CallLimits | None:
        self.limited.add((model_name, model_version, max_images))
        return self.limits

    async def resize(self, model_name: str, model_version: str) -> Resize | None:
        return self.wanted


class ScriptedDecoders:
    """Decodes an image when the test finishes it; a cancelled decode ends with its cancellation."""

    def __init__(self) -> None:
        self._pictures: list[asyncio.Future[Decoded]] = []
        self.sizes: list[Size] = []

    @property
    def pending(self) -> "list[asyncio.Future[Decoded]]":
        return [picture for picture in self._pictures if not picture.done()]

    def account(self, client: Hashable = None) -> Account:
        return Account(3.0, 3.0, client=client)

    async def read_header(self, data: bytes, image_format: ImageFormat, account: Account) -> Header:
        return read_header(data, image_format)

    async def decode(self, data: bytes, info: Header, size: Size, account: Account) -> Decoded:
        picture: asyncio.Future[Decoded] = asyncio.get_running_loop().create_future()
        self._pictures.append(picture)
        self.sizes.append(size)
        return await picture

    def finish(self, number: int = 0, error: GatewayError | None = None, *, damaged: bool = False) -> None:
        if error is not None:
            self.pending[number].set_exception(error)
        else:
            self.pending[number].set_result(Decoded(b"P6 4 4 255\n" + bytes(48), damaged))


@dataclass(eq=False)
class Body:
    """The uploads of one request, which the test sends."""

    items: "asyncio.Queue[Upload | Exception | None]" = field(default_factory=asyncio.Queue)
    sent: int = 0
    opened: bool = False
    closed: bool = False

    def send(self, data: bytes) -> None:
        self.items.put_nowait(Upload(self.sent, f"{self.sent}", data))
        self.sent += 1

    def break_off(self, error: Exception) -> None:
        self.items.put_nowait(error)

    def end(self) -> None:
        self.items.put_nowait(None)

    async def uploads(self) -> AsyncGenerator[Upload, None]:
        self.opened = True
        try:
            while (item := await self.items.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self.closed = True


def body_of(*contents: bytes) -> Body:
    """A body that has arrived."""
    body = Body()
    for content in contents:
        body.send(content)
    body.end()
    return body


def service_of(
    backend: ScriptedBackend,
    *,
    decoders: ScriptedDecoders | None = None,
    shadow: dict[str, dict[str, int]] | None = None,
    batch_images: int = 2,
    request_calls: int = 2,
    batch_bytes: int = 10**6,
    steps: Sequence[Step] = (),
    observers: Sequence[Observer] = (),
    **limits: Any,
) -> "ScriptedService":
    """A service whose limits are small, and changed by `limits`."""
    admission = {
        "max_images": 4,
        "max_bytes": 10**6,
        "max_images_waiting": 3,
        "max_wait_seconds": 2.0,
    }
    batches = BatchLimits(max_images=batch_images, max_bytes=batch_bytes, max_calls=request_calls)
    admission.update(limits)
    limits = UploadLimits.from_settings(Settings(_env_file=None))
    backend.rollouts = {name: Rollout({"1": 100}, versions) for name, versions in (shadow or {}).items()}
    parts = backend, Admission(**admission), limits, batches, decoders or ScriptedDecoders(), image_steps(steps)
    return ScriptedService(*parts, observers=observers)


class ScriptedService(InferenceService):
    """A service with shadow versions."""

    def __init__(self, *parts: Any, observers: Sequence[Observer]) -> None:
        super().__init__(*parts)
        self.shadows = Shadows(self)
        self.observers = Observers([self.shadows, *observers])


class ScriptedStep:
    """A step of a plug-in, whose waits a test ends."""

    def __init__(self) -> None:
        self.waits: list[asyncio.Future[None]] = []

    async def __call__(self, _: Image) -> None:
        self.waits.append(asyncio.get_running_loop().create_future())
        await self.waits[-1]


def query(timeout_seconds: float = 30.0, **options: Any) -> RequestSpec:
    return RequestSpec("m", "", None, timeout_seconds, "r", **options)


async def collected(service: InferenceService, body: Body, asked: RequestSpec, leaving: Any = None) -> list[Any]:
    """The results of a request."""
    results: list[Any] = []
    await service.run(body.uploads(), asked, results.append, leaving)
    return results


def start(loop: Loop, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
    task = loop.create_task(work)
    loop.turn()
    return task


class Scripted:
    """A service over a ScriptedBackend: after each act of a test, everything that needs no time is done."""

    def __init__(
        self,
        loop: Loop,
        *,
        supports_cancellation: bool = True,
        at_once: Callable[[PendingCall], None] | None = None,
        calls: CallLimits | None = None,
        **options: Any,
    ) -> None:
        self.loop = loop
        self.backend = ScriptedBackend(supports_cancellation=supports_cancellation)
        self.backend.at_once = at_once
        self.backend.limits = calls
        self.decoders = ScriptedDecoders()
        self.service = service_of(self.backend, decoders=self.decoders, **options)
        loop.services.append(self)

    @property
    def calls(self) -> list[PendingCall]:
        return self.backend.calls

    @property
    def pending(self) -> list[PendingCall]:
        return self.backend.pending

    @property
    def sizes(self) -> list[int]:
        """The number of images in each call."""
        return [len(each.call.images) for each in self.calls]

    @property
    def held(self) -> int:
        """Permits that are out."""
        return self.service.admission.images.held

    @property
    def idle(self) -> bool:
        """Whether no permit is out, no call or image is left, and no model is kept that the backend does not know."""
        models = self.service._models.values()
        left = any(model.limits is None or model.calls or model.counted or model.waiting for model in models)
        return (self.service.admission.images.held, self.service.admission.bytes.held, left) == (0, 0, False)

    def send(
        self, *images: bytes, body: Body | None = None, asked: RequestSpec | None = None, leaving: Any = None, **options
    ) -> "asyncio.Task[list[Result]]":
        """A request with images, or with a body of which more arrives later."""
        asked = asked or query(**options)
        request = start(self.loop, collected(self.service, body or body_of(*images), asked, leaving))
        self.loop.settle()
        return request

    def results(self, request: "asyncio.Task[list[Result]]") -> list[Result]:
        """The results, by index, of a request that waits for nothing."""
        return sorted(self.loop.finish(request), key=lambda result: result.index)

    def classify(self, *images: bytes, **options: Any) -> list[Result]:
        """The results of a request whose calls are answered at once."""
        return self.results(self.send(*images, **options))

    def answer(self, number: int = 0) -> None:
        """Answer one of the pending calls."""
        self.pending[number].answer()
        self.loop.settle()

    def answer_all(self) -> None:
        """Answer all calls, and later ones."""
        while self.pending:
            self.answer()

    def fail(self, error: Exception, number: int = 0) -> None:
        """Let one of the pending calls fail."""
        self.pending[number].fail(error)
        self.loop.settle()

    def decode(self, error: GatewayError | None = None, *, damaged: bool = False) -> None:
        """Finish a decode."""
        self.decoders.finish(0, error, damaged=damaged)
        self.loop.settle()

    def cancel(self, request: "asyncio.Task[Any]") -> None:
        """The handler of a request is cancelled."""
        request.cancel()
        self.loop.settle()

    def pass_time(self, seconds: float) -> None:
        self.loop.pass_time(seconds)
        self.loop.settle()

    def close(self) -> "asyncio.Task[None]":
        """The service begins to close."""
        closing = start(self.loop, self.service.close())
        self.loop.settle()
        return closing
