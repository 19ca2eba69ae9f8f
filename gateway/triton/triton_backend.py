"""The Backend that speaks to one or several Tritons."""

import asyncio
import random
import time
from collections.abc import Collection, Sequence

from gateway import metrics
from gateway.errors import DeadlineExceeded, ModelNotFound, ModelUnavailable, TritonUnreachable
from gateway.inference.backend import Call, EndpointHealth, InferResult, ModelInfo
from gateway.triton.addresses import resolve
from gateway.triton.catalogue import Models
from gateway.triton.endpoint import Endpoint
from gateway.triton.grpc_endpoint import GrpcEndpoint
from gateway.triton.healing import Healer
from gateway.triton.retries import RetryBudget
from gateway.triton.seal import Seal
from gateway.triton.watch import Watch

MAX_ATTEMPTS = 4
RETRY_PAUSE_SECONDS = (0.02, 0.1)
"""Between attempts at a lone Triton: at random, so that many clients do not come back at once, and longer each time."""
QUICKLY_SEALED_BYTES = 2**20
"""A larger batch is sealed on a thread: the event loop has others to serve."""
RETIREMENT_SECONDS = 60.0
"""How long a Triton that has left the DNS name may finish what it was asked."""


class TritonBackend:
    """Tritons behind one or several `host:port`, in turn; one that fails is left out until a trial has gone well.

    `start` it inside the event loop that uses it.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        model_name: str,
        interval_seconds: float,
        timeout_seconds: float,
        heal: bool,
        seal: Seal,
    ) -> None:
        self._urls = tuple(urls)
        self._model_name = model_name
        self._interval_seconds = interval_seconds
        self._timeout_seconds = timeout_seconds
        self._heals = heal
        self._seal = seal
        self._watches: dict[str, Watch] = {}
        self._models: dict[str, Models] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._resolving: asyncio.Task[None] | None = None
        self._retiring: set[asyncio.Task[None]] = set()
        self._turn = 0
        self._budget = RetryBudget()

    async def start(self) -> None:
        """Connect and begin to watch; an unreachable Triton is no error, it is waited for."""
        self._follow(await resolve(self._urls))
        self._resolving = asyncio.create_task(self._keep_resolving())

    async def close(self) -> None:
        """Stop watching and close every channel; calls in flight are given up."""
        tasks = [task for task in (self._resolving, *self._tasks.values(), *self._retiring) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(watch.endpoint.close() for watch in self._watches.values()))

    @property
    def bears_cancellation(self) -> bool:
        """Whether every Triton survives a client that cancels its call."""
        return all(watch.endpoint.bears_cancellation for watch in self._watches.values())

    def health(self) -> Sequence[EndpointHealth]:
        """What is known of each Triton."""
        return [watch.health() for watch in self._watches.values()]

    async def infer(self, call: Call) -> InferResult:
        """Classify a batch; see Backend.infer.

        A lost connection or a dead process is answered by another Triton where there is one, and a lost connection
        also by the same one: inference changes nothing, so a second attempt is safe. A full queue is not retried.
        """
        self._budget.deposit()
        if call.batch.raw_image.nbytes > QUICKLY_SEALED_BYTES:
            await asyncio.to_thread(self._seal.apply, call.batch)
        else:
            self._seal.apply(call.batch)
        tried: list[str] = []
        while True:
            watch = self._next(tried)
            tried.append(watch.endpoint.address)
            asked_at = time.monotonic()
            try:
                return await self._models[watch.endpoint.address].infer(call)
            except ModelNotFound as error:
                version = f" version {call.model_version}" if call.model_version else ""
                raise ModelNotFound(
                    f"There is no model {call.model_name!r}{version}; GET /models lists those there are."
                ) from error
            except (TritonUnreachable, ModelUnavailable) as error:
                if call.model_name == self._model_name or not isinstance(error, ModelUnavailable):
                    watch.suspect(error, asked_at)
                elsewhere = any(other.ready for address, other in self._watches.items() if address not in tried)
                if not elsewhere and (isinstance(error, ModelUnavailable) or len(tried) >= MAX_ATTEMPTS):
                    raise
                if not self._budget.withdraw():
                    raise
                if not elsewhere:
                    await asyncio.sleep(random.uniform(*RETRY_PAUSE_SECONDS) * len(tried))  # noqa: S311  # no secret
                if call.deadline.passed:
                    raise DeadlineExceeded from error
                metrics.RETRIES.inc()

    async def models(self) -> Sequence[ModelInfo]:
        """Every ensemble that keeps the contract, as the next Triton in turn has it."""
        return await self._models[self._next(()).endpoint.address].all()

    async def model(self, name: str) -> ModelInfo:
        """One of `models`; raises ModelNotFound."""
        for info in await self.models():
            if info.name == name:
                return info
        raise ModelNotFound(f"There is no model {name!r} that classifies images; GET /models lists those there are.")

    async def labels(self, model_name: str, model_version: str) -> Sequence[str]:
        """The labels of one version's classes; see Backend.labels."""
        return await self._models[self._next(()).endpoint.address].labels(model_name, model_version)

    async def load(self, name: str) -> None:
        """Have every Triton load a model or take up its changes, one after the other; see Backend.load."""
        for models in list(self._models.values()):
            await models.load(name)

    async def unload(self, name: str) -> None:
        """Have every Triton let go of a model; see Backend.unload."""
        for models in list(self._models.values()):
            await models.unload(name)

    def _next(self, tried: Collection[str]) -> Watch:
        """The next Triton in turn that is ready and not tried yet; where none is, any, so that its error is told."""
        watches = list(self._watches.values())
        self._turn += 1
        order = [watches[(self._turn + offset) % len(watches)] for offset in range(len(watches))]
        fresh = [watch for watch in order if watch.endpoint.address not in tried] or order
        return next((watch for watch in fresh if watch.ready), fresh[0])

    async def _keep_resolving(self) -> None:
        while True:
            await asyncio.sleep(self._interval_seconds)
            self._follow(await resolve(self._urls))

    def _follow(self, addresses: Sequence[str]) -> None:
        """Watch the addresses that are new, and leave those that are gone."""
        for address in addresses:
            if address not in self._watches:
                endpoint = GrpcEndpoint(address)
                self._models[address] = Models(endpoint)
                self._watches[address] = Watch(
                    endpoint,
                    model_name=self._model_name,
                    interval_seconds=self._interval_seconds,
                    timeout_seconds=self._timeout_seconds,
                    healer=Healer(endpoint) if self._heals else None,
                )
                self._tasks[address] = asyncio.create_task(self._watches[address].run())
        for address in set(self._watches) - set(addresses):
            self._tasks.pop(address).cancel()
            self._models.pop(address)
            metrics.forget_triton(address)
            retirement = asyncio.create_task(_retire(self._watches.pop(address).endpoint))
            self._retiring.add(retirement)
            retirement.add_done_callback(self._retiring.discard)


async def _retire(endpoint: Endpoint) -> None:
    try:
        await asyncio.sleep(RETIREMENT_SECONDS)
    finally:
        await endpoint.close()
