"""The Backend over one or more Tritons."""

import asyncio
import contextlib
import time
from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import NotRequired, TypedDict, Unpack

from gateway.errors import (
    DeadlineExceeded,
    GatewayError,
    ImageQuarantined,
    ModelNotFound,
    ModelUnavailable,
    TritonUnreachable,
)
from gateway.inference.backend import (
    Call,
    CallLimits,
    EndpointHealth,
    InferResult,
    ModelLoader,
)
from gateway.triton.error_table import NOT_LOADED, StubDied
from gateway.triton.pool import TritonPool
from gateway.triton.pool_models import LIST_HINT, CheckLoad, PoolModels
from gateway.triton.quarantine import Quarantine
from gateway.triton.replica import Replica
from gateway.triton.retries import Retries, Suspects
from gateway.triton.seal import RecentCodes, Seal

HOLD_STEP_SECONDS = 0.1
"""Interval at which held calls look for a ready Triton; a Triton starts in tens of seconds."""
_SUPPORTS_CANCELLATION = attrgetter("endpoint.supports_cancellation")


class BackendOptions(TypedDict):
    """The options of a TritonBackend."""

    model_name: str
    seal: Seal
    quarantine: Quarantine
    hold_seconds: NotRequired[float]
    """While no Triton is ready, a call waits up to this long for one; by default it does not wait."""
    check_load: NotRequired[CheckLoad | None]


class TritonBackend(PoolModels):
    """Sends each call to a ready Triton of the pool; see gateway.triton.pool.

    `start` it inside the event loop that uses it.
    """

    def __init__(self, pool: TritonPool, **options: Unpack[BackendOptions]) -> None:
        super().__init__(pool, options["model_name"], options.get("check_load"))
        self._hold_seconds = options.get("hold_seconds", 0.0)
        self.seal = options["seal"].code
        """The seal of an image; see gateway.triton.seal."""
        self.tensor_input = pool.codecs.tensor_input
        """See Backend.tensor_input."""
        self._quarantine = options["quarantine"]
        self._recent = RecentCodes()
        self._retries = Retries()
        self._suspects = Suspects(pool, self._quarantine, self._infer_at)

    async def start(self) -> None:
        """Connect and start the health checkers; an unreachable Triton is retried and not an error."""
        await self._pool.start()

    async def close(self) -> None:
        """Stop the health checkers and close every channel; calls in flight are cancelled."""
        await self._pool.close()
        self._quarantine.close()

    @property
    def loader(self) -> ModelLoader | None:
        """What loads models that are requested; None if all are loaded. See Backend.loader."""
        return None

    @property
    def supports_cancellation(self) -> bool:
        """Whether every Triton in use supports cancellation."""
        return all(map(_SUPPORTS_CANCELLATION, self._pool.in_use.values()))

    def health(self) -> Sequence[EndpointHealth]:
        """The health of each Triton in use."""
        return [replica.checker.health() for replica in self._pool.replicas]

    def needs_own_call(self, seal: bytes, model_name: str, model_version: str) -> bool:
        """Whether an image may be in the response cache, or may crash a process; see Backend.needs_own_call."""
        if self._recent.add(seal):
            for replica in self._pool.serving(model_name, model_version):
                if replica.models.may_cache(model_name, model_version):
                    return True
        return self._quarantine.is_active and bool(self._quarantine.suspicious((seal,)))

    def call_limits(self, model_name: str, model_version: str, max_images: int) -> CallLimits | None:
        """The limits of calls to all Tritons that are ready for a model; see Backend.call_limits."""
        ready = self._pool.ready(model_name, model_version)
        known = [replica.models.call_limits(model_name, model_version, max_images) for replica in ready]
        limits = [each for each in known if each is not None]
        if not limits:
            return None
        # A Triton that has had no call yet is taken for an average one.
        calls = round(sum(each.calls for each in limits) / len(limits) * len(ready))
        mixed_lengths = all(each.mixed_lengths for each in limits)
        return CallLimits(calls, min(each.images for each in limits), mixed_lengths)

    async def infer(self, call: Call) -> InferResult:
        """Classify a batch; see Backend.infer.

        A lost connection or an unavailable model is retried on another Triton if there is one, a lost connection also
        on the same one: inference has no side effects, so a retry is safe. A full queue is not retried. Images that
        were in flight when a process died are retried once, each alone, on one other Triton.
        """
        codes = call.batch.seals
        if len(codes) != len(call.batch.images):
            msg = "an image without a seal could get the cached answer of another one"
            raise ValueError(msg)
        if call.best_effort:
            return await self._infer_best_effort(call)
        if self._hold_seconds:
            await self._hold(call)
        self._retries.requests += 1
        if self._quarantine.is_active and (suspects := self._quarantine.suspicious(codes)):
            return await self._suspects.infer_apart(call, suspects, self._infer_batch)
        return await self._infer_batch(call)

    async def _infer_best_effort(self, call: Call) -> InferResult:
        """Run a best-effort call once on a ready Triton.

        It uses no retry, records no suspects, and is refused for images that may crash a process.
        """
        if self._quarantine.suspicious(call.batch.seals):
            raise ImageQuarantined
        if not (ready := self._ready((), call)):
            raise ModelUnavailable
        replica = self._pool.least_loaded(ready)
        if not replica.gate.is_open:
            raise ModelUnavailable
        with replica.gate:
            return await replica.models.infer(call)

    async def _hold(self, call: Call) -> None:
        """Hold a call while no Triton is ready, for example after scaling to zero; at most until its deadline."""
        until = time.monotonic() + min(self._hold_seconds, call.deadline.left_seconds)
        # Polling, since Tritons are added and removed, each with its own health checker.
        while time.monotonic() < until and not any(  # noqa: ASYNC110
            replica.health.ready for replica in self._pool.replicas
        ):
            await asyncio.sleep(HOLD_STEP_SECONDS)

    async def _infer_batch(self, call: Call) -> InferResult:
        """Call one Triton after another while a retry is safe; images of a process that dies are sent alone."""
        tried: list[str] = []
        while True:
            replica = self._pool.choose(call.model_name, call.model_version, tried)
            tried.append(replica.address)
            try:
                if not replica.gate.is_open:
                    await replica.gate.opened_by(call.deadline)
                with replica.gate:
                    return await self._infer_at(replica, call)
            except StubDied:
                self._quarantine.suspect(call.batch.seals)
                if not self._ready(tried, call):
                    raise
                break
            except (TritonUnreachable, ModelUnavailable) as error:
                await self._retries.wait(error, call, len(tried), elsewhere=bool(self._ready(tried, call)))
        self._retries.count()
        return await self._suspects.infer_each(call, tried)

    async def _infer_at(self, replica: Replica, call: Call) -> InferResult:
        began = time.monotonic()
        images = len(call.batch.images)
        replica.load.images += images
        try:
            result = await replica.models.infer(call)
        except ModelNotFound as error:
            raise await self._not_found(replica, call) from error
        except DeadlineExceeded:
            replica.load.observe(time.monotonic() - began)
            raise
        finally:
            replica.load.images -= images
        replica.load.observe(time.monotonic() - began)
        return result

    async def _not_found(self, replica: Replica, call: Call) -> GatewayError:
        """The error of a call whose model or version a Triton does not have."""
        if self._pool.may_become_ready(call.model_name, call.model_version, replica):
            return ModelUnavailable(NOT_LOADED)
        version = f" version {call.model_version}" if call.model_version else ""
        hint = ""
        with contextlib.suppress(GatewayError):  # a failed hint must not replace the error
            hint = await replica.models.suggestion(call.model_name)
        return ModelNotFound(f"There is no model {call.model_name!r}{version}; {hint or LIST_HINT}")

    def _ready(self, tried: Collection[str], call: Call) -> list[Replica]:
        """The Tritons that are ready for a model, except those in `tried`."""
        return self._pool.ready(call.model_name, call.model_version, tried)
