"""The Backend over one or more Triton servers, as the settings name them."""

import asyncio
import random
import secrets
import time
from collections import ChainMap
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

import structlog

from gateway import metrics
from gateway.errors import (
    DeadlineExceeded,
    GatewayError,
    ImageCrashedModel,
    ModelNotFound,
    ModelUnavailable,
    RequestError,
    SequenceUnknown,
    TritonUnreachable,
)
from gateway.inference.backend import Call, CallLimits, EndpointHealth, SequenceScores, SequenceStep
from gateway.inference.result import Row
from gateway.ingest.resizing import Resize
from gateway.triton.client import NOT_LOADED, SequenceLost, StubDied
from gateway.triton.pool import TritonPool, least_loaded, rendezvous_order
from gateway.triton.wire import Signer
from gateway.values.rollout import Rollout

if TYPE_CHECKING:
    from gateway.inference.backend import ModelInfo
    from gateway.settings import Settings
    from gateway.triton.replica import Replica
    from gateway.triton.sequence import TritonSequence


RETRY_PAUSE_SECONDS = (0.1, 0.3)
"""Before a retry at the same Triton, whose connection needs up to 0.25 s: random, so that retries are spread."""
HOLD_STEP_SECONDS = 0.1
"""Interval at which held calls look for a ready Triton; a Triton starts in tens of seconds."""
RECENT_IMAGES = 100_000
"""Signatures that are kept, in 10 MB of memory. A cached answer has kilobytes, so a cache of 1 GB has fewer of them."""
LIST_HINT = "GET /models lists the models."
_SUPPORTS_CANCELLATION = attrgetter("endpoint.supports_cancellation")

log = structlog.get_logger("gateway")


class TritonBackend:
    """Sends each call to a ready Triton of the pool; see gateway.triton.pool.

    `start` it inside the event loop that uses it.
    """

    def __init__(self, pool: TritonPool, settings: "Settings") -> None:
        self._pool = pool
        self._model_name = settings.model
        self._repository = settings.model_repository
        """With the folder of the models, a model is loaded only if its memory is free on this machine."""
        self.rollout: Callable[[str], Rollout | None] = pool.rollouts.get
        """See Backend.rollout."""
        self._hold_seconds = settings.max_wait_seconds if settings.hold_without_triton else 0.0
        """How long a call waits for a ready Triton."""
        secret = settings.cache_secret
        self.sign = Signer(secret.get_secret_value().encode() if secret else secrets.token_bytes(32)).sign
        """The signature of an image; see gateway.triton.wire."""
        declared = ChainMap(*settings.each("tensor_models"))
        self.tensor_input = {name: model.tensor for name, model in declared.items()}.get
        """See Backend.tensor_input."""
        self._recent: dict[bytes, bool] = {}
        """The signatures of the RECENT_IMAGES last images, which alone may have an answer in Triton's cache."""
        self._one_suspect = asyncio.Lock()

    async def start(self) -> None:
        """Connect and start the health checkers; an unreachable Triton is retried and not an error."""
        await self._pool.start()

    async def close(self) -> None:
        """Stop the health checkers and close every channel; calls in flight are cancelled."""
        await self._pool.close()

    @property
    def supports_cancellation(self) -> bool:
        """Whether every Triton in use supports cancellation."""
        return all(map(_SUPPORTS_CANCELLATION, self._pool.in_use.values()))

    def health(self) -> Sequence[EndpointHealth]:
        """The health of each Triton in use."""
        return [replica.health.summary() for replica in self._pool.replicas]

    def needs_own_call(self, signature: bytes, model_name: str, model_version: str) -> bool:
        """Whether an image may be in the response cache; see Backend.needs_own_call."""
        was_sent = self._recent.pop(signature, False)
        self._recent[signature] = True
        if len(self._recent) > RECENT_IMAGES:
            del self._recent[next(iter(self._recent))]
        if was_sent:
            for replica in self._pool.serving(model_name, model_version):
                if replica.may_cache(model_name, model_version):
                    return True
        return False

    def call_limits(self, model_name: str, model_version: str, max_images: int) -> CallLimits | None:
        """The limits of calls to all Triton servers that are ready for a model; see Backend.call_limits."""
        ready = self._pool.ready(model_name, model_version)
        known = [replica.call_limits(model_name, model_version, max_images) for replica in ready]
        limits = [each for each in known if each is not None]
        if not limits:
            return None
        # A Triton that has had no call yet is taken for an average one.
        calls = round(sum(each.calls for each in limits) / len(limits) * len(ready))
        return CallLimits(calls, min(each.images for each in limits))

    async def infer(self, call: Call) -> Sequence[Row]:
        """Classify a batch; see Backend.infer.

        A call whose connection is lost, or whose model is unavailable, is sent once more: to another Triton if one is
        ready, and after a lost connection also to the same one. Inference has no side effects, so a retry is safe. A
        full queue is not retried. Images whose call ended a process are sent once more, each alone, to another Triton.
        """
        if len(call.signatures) != len(call.images):
            msg = "an image without a signature could get the cached answer of another one"
            raise ValueError(msg)
        if call.best_effort:
            if not (ready := self._ready((), call)):
                raise ModelUnavailable
            return await least_loaded(ready).infer(call)
        if self._hold_seconds:
            await self._hold(call)
        replica = self._pool.choose(call.model_name, call.model_version)
        try:
            return await self._infer_at(replica, call)
        except (TritonUnreachable, ModelUnavailable) as error:
            tried = (replica.address,)
            if not self._ready(tried, call):
                if not isinstance(error, TritonUnreachable):
                    raise
                pause_seconds = random.uniform(*RETRY_PAUSE_SECONDS)  # noqa: S311  # no secret
                await asyncio.sleep(min(pause_seconds, call.deadline.left_seconds))
            if call.deadline.passed:
                raise DeadlineExceeded from error
            metrics.RETRIES.inc()
            if isinstance(error, StubDied):
                return [await self._infer_alone(call.of([number]), tried) for number in range(len(call.images))]
        return await self._infer_at(least_loaded(self._ready(tried, call) or [replica]), call)

    async def _hold(self, call: Call) -> None:
        """Hold a call while no Triton is ready, for example after scaling to zero; at most until its deadline."""
        until = time.monotonic() + min(self._hold_seconds, call.deadline.left_seconds)
        # Polling, since Triton servers are added and removed, each with its own health checker.
        while time.monotonic() < until and not any(  # noqa: ASYNC110
            replica.health.ready for replica in self._pool.replicas
        ):
            await asyncio.sleep(HOLD_STEP_SECONDS)

    async def _infer_alone(self, call: Call, tried: Collection[str]) -> Row:
        """Send an image whose call ended a process once more; if it ends another one, it gets an error.

        One such image is in flight at a time, after all instances of its Triton have answered a probe, so that no image
        is blamed for the effect of another.
        """
        try:
            async with asyncio.timeout(call.deadline.left_seconds):
                await self._one_suspect.acquire()
            try:
                if not (ready := self._ready(tried, call)):
                    raise ModelUnavailable
                replica = least_loaded(ready)
                async with asyncio.timeout(call.deadline.left_seconds):
                    if await replica.checker.fails(replica.health.serving(call.model_name, call.model_version)):
                        raise ModelUnavailable
                (row,) = await self._infer_at(replica, call)  # not cancelled: that crashes a Triton before 2.53
            finally:
                self._one_suspect.release()
        except RequestError:
            raise  # an unknown model or label: an error of the request
        except StubDied as exc:
            event = {"triton": replica.address, "model": exc.step, "image": call.signatures[0].hex()[:16]}
            log.warning("image_crashed_model", **event, request_id=call.request_id)
            return Row(error=ImageCrashedModel())
        except GatewayError as exc:
            return Row(error=exc)
        except TimeoutError:
            return Row(error=DeadlineExceeded())
        return row

    async def _infer_at(self, replica: "Replica", call: Call) -> Sequence[Row]:
        images = len(call.images)
        replica.images += images
        try:
            return await replica.infer(call)
        except ModelNotFound as error:
            if self._pool.may_become_ready(call.model_name, call.model_version, replica):
                raise ModelUnavailable(NOT_LOADED) from error
            version = f" version {call.model_version}" if call.model_version else ""
            raise ModelNotFound(f"There is no model {call.model_name!r}{version}; {LIST_HINT}") from error
        finally:
            replica.images -= images

    def _ready(self, tried: Collection[str], call: Call) -> "list[Replica]":
        """The Triton servers that are ready for a model, except those in `tried`."""
        return self._pool.ready(call.model_name, call.model_version, tried)

    async def models(self) -> "Sequence[ModelInfo]":
        """Every ensemble that keeps the contract, as one Triton has it."""
        return await self._choose().describe_all()

    async def model(self, name: str) -> "ModelInfo":
        """One of `models`; raises ModelNotFound, or ModelUnavailable for one that should be there."""
        if (info := await self._choose().describe(name)) is not None:
            return info
        if any(replica.health.lacks(name) for replica in self._pool.replicas):
            raise ModelUnavailable(NOT_LOADED)
        raise ModelNotFound(f"There is no model {name!r} that classifies images; {LIST_HINT}")

    async def labels(self, model_name: str, model_version: str) -> Sequence[str]:
        """The labels of one version's classes; see Backend.labels."""
        return await self._choose(model_name, model_version).labels(model_name, model_version)

    async def resize(self, model_name: str, model_version: str) -> Resize | None:
        """How one version's images are resized; see Backend.resize."""
        return await self._choose(model_name, model_version).resize(model_name, model_version)

    async def sequence(self, model_name: str, model_version: str) -> "TritonSequence":
        """A new sequence of frames; see Backend.sequence."""
        from gateway.triton.sequence import TritonSequence  # loaded with the first stream

        replica = self._choose(model_name, model_version)
        return TritonSequence(
            await self._sequence_model(replica, model_name, model_version),
            partial(self._pool.ready, model_name, model_version),
            partial(self._pool.candidates, model_name, model_version),
        )

    async def add_to_sequence(self, model_name: str, model_version: str, step: SequenceStep) -> SequenceScores:
        """Add an image to the sequence of a client, at the Triton that the id selects; see Backend.add_to_sequence."""
        replicas = {replica.address: replica for replica in self._pool.candidates(model_name, model_version)}
        replica = replicas[rendezvous_order(replicas, str(step.sequence_id))[0]]
        name = await self._sequence_model(replica, model_name, model_version)
        sent_at = time.monotonic()
        try:
            return await replica.endpoint.infer_sequence(replace(step, model_name=name))
        except SequenceLost as error:
            raise SequenceUnknown(
                "The sequence has no state: it has not been started, was idle too long, or its Triton was restarted. "
                "Start it again, with another 'sequence_id'."
            ) from error
        except StubDied:
            replica.health.process_died(name, sent_at)
            raise

    async def _sequence_model(self, replica: "Replica", model_name: str, model_version: str) -> str:
        """The stateful model of a model; where it is not loaded, it is loaded on every Triton, and stays."""
        try:
            return await replica.sequence_model(model_name, model_version)
        except ModelNotFound:
            replicas = self._pool.candidates(model_name, model_version)
            loaded = [await each.load_sequence_model(model_name, model_version) for each in replicas]
            if not any(loaded):
                raise
            name = next(filter(None, loaded))
            self._pool.want(name)
            return name

    async def statistics(self, model_name: str, model_version: str) -> bytes:
        """See Backend.statistics."""
        response = await self._pool.choose(model_name).endpoint.statistics(model_name, model_version)
        return bytes(response.SerializeToString())

    async def load(self, name: str) -> None:
        """Load or reload a model on every Triton, one after the other; see Backend.load."""
        if self._repository is not None:
            from gateway.machine.memory import usable_memory
            from gateway.triton.footprint import check_load

            await asyncio.to_thread(check_load, name, self._repository, usable_memory())
        for replica in self._pool.replicas:
            await replica.load(name)
        await self._pool.follow()

    async def unload(self, name: str) -> None:
        """Unload a model on every Triton; see Backend.unload."""
        for replica in self._pool.replicas:
            replica.health.forget(await replica.unload(name))

    def _choose(self, model_name: str = "", model_version: str = "") -> "Replica":
        """A Triton for a model, the default model if none is named."""
        return self._pool.choose(model_name or self._model_name, model_version)
