"""The models of a pool of Tritons: what they are, loading them, their sequences, and Triton's own protocol."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import structlog

from gateway.deadline import Deadline
from gateway.errors import ModelNotFound, ModelUnavailable, SequenceUnknown
from gateway.inference.sequence import SequenceScores, SequenceStep
from gateway.ingest.resizing import Resize
from gateway.triton.balancing import rendezvous_order
from gateway.triton.error_table import NOT_LOADED, SequenceLost, StubDied
from gateway.triton.pool import TritonPool
from gateway.triton.replica import Replica

if TYPE_CHECKING:
    from gateway.inference.model_info import ModelInfo
    from gateway.triton.triton_sequence import TritonSequence

log = structlog.get_logger("gateway")

LIST_HINT = "GET /models lists the models."

CheckLoad = Callable[[str], str | None]
"""Gets the name of a model that is to be loaded; it may return a warning, or raise LoadFailed."""


class PoolModels:
    """Everything of a Backend but the classification of images; `model_name` is the default model."""

    def __init__(self, pool: TritonPool, model_name: str, check_load: CheckLoad | None) -> None:
        self._pool = pool
        self._model_name = model_name
        self._check_load = check_load

    async def models(self) -> "Sequence[ModelInfo]":
        """Every ensemble that keeps the contract, as one Triton has it."""
        return await self._choose().models.all()

    async def model(self, name: str) -> "ModelInfo":
        """One of `models`; raises ModelNotFound, or ModelUnavailable for one that should be there."""
        models = self._choose().models
        if (info := await models.one(name)) is not None:
            return info
        if any(replica.health.lacks(name) for replica in self._pool.replicas):
            raise ModelUnavailable(NOT_LOADED)
        hint = await models.suggestion(name)
        raise ModelNotFound(f"There is no model {name!r} that classifies images; {hint or LIST_HINT}")

    async def labels(self, model_name: str, model_version: str) -> Sequence[str]:
        """The labels of one version's classes; see Backend.labels."""
        return await self._choose(model_name, model_version).models.labels(model_name, model_version)

    async def resize(self, model_name: str, model_version: str) -> Resize | None:
        """How one version's images are resized; see Backend.resize."""
        return await self._choose(model_name, model_version).models.resize(model_name, model_version)

    async def sequence(self, model_name: str, model_version: str) -> "TritonSequence":
        """A new sequence of frames; see Backend.sequence."""
        from gateway.triton.triton_sequence import TritonSequence  # loaded with the first stream

        name = await self._choose(model_name, model_version).models.sequence_model(model_name, model_version)
        return TritonSequence(
            name,
            partial(self._pool.ready, model_name, model_version),
            partial(self._pool.candidates, model_name, model_version),
        )

    async def add_to_sequence(self, model_name: str, model_version: str, step: SequenceStep) -> SequenceScores:
        """Add an image to the sequence of a client, at the Triton that the id selects; see Backend.add_to_sequence."""
        replicas = {replica.address: replica for replica in self._pool.candidates(model_name, model_version)}
        replica = replicas[rendezvous_order(replicas, str(step.sequence_id))[0]]
        name = await replica.models.sequence_model(model_name, model_version)
        try:
            return await replica.endpoint.infer_sequence(replace(step, model_name=name))
        except SequenceLost as error:
            raise SequenceUnknown(
                "The sequence has no state: it has not been started, was idle too long, or its Triton was restarted. "
                "Start it again, with another 'sequence_id'."
            ) from error
        except StubDied:
            replica.health.process_died(name)
            raise

    async def call(self, method: str, model_name: str, request: bytes, deadline: Deadline) -> bytes:
        """See Backend.call: a ready Triton is called once."""
        replica = self._pool.choose(model_name)
        return await replica.endpoint.call(method, request, deadline.left_seconds)

    async def load(self, name: str) -> None:
        """Load or reload a model on every Triton, one after the other; see Backend.load."""
        if self._check_load is not None and (warning := await asyncio.to_thread(self._check_load, name)):
            log.warning("memory_may_run_out", model=name, reason=warning)
        for replica in self._pool.replicas:
            await replica.models.load(name)

    async def unload(self, name: str) -> None:
        """Unload a model on every Triton; see Backend.unload."""
        for replica in self._pool.replicas:
            replica.checker.forget(await replica.models.unload(name))

    def _choose(self, model_name: str = "", model_version: str = "") -> Replica:
        """A Triton for a model, the default model if none is named."""
        return self._pool.choose(model_name or self._model_name, model_version)
