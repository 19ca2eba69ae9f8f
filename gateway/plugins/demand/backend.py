"""The Backend over Triton servers whose models are loaded on demand."""

from collections.abc import Sequence
from dataclasses import replace

from gateway.errors import GatewayError, ModelNotFound, ModelUnavailable
from gateway.inference.backend import Call, ModelInfo
from gateway.inference.result import Row
from gateway.plugins.demand.loader import DemandLoader
from gateway.settings import Settings
from gateway.timing import Deadline
from gateway.triton.backend import LIST_HINT, TritonBackend
from gateway.triton.client import LOAD_TIMEOUT_SECONDS, StubDied
from gateway.triton.pool import TritonPool
from gateway.triton.replica import NOT_SERVED
from gateway.triton.sequence import TritonSequence

MOST_RELOADS = 3
"""How often a call loads its model again: each time, another gateway has unloaded it meanwhile."""
ON_DEMAND = "No Triton has loaded it; a request for it does."


class DemandBackend(TritonBackend):
    """A TritonBackend that loads models when they are requested.

    An image waits for its model before it is admitted. A call whose model has been unloaded since then loads it again.
    """

    def __init__(self, pool: TritonPool, loader: DemandLoader, settings: Settings) -> None:
        super().__init__(pool, settings)
        self.loader = loader
        self._tritons = pool
        self._described: dict[str, ModelInfo] = {}
        """Each model as it was when it was last loaded."""

    async def close(self) -> None:
        """See Backend.close."""
        await self.loader.close()
        await super().close()

    async def infer(self, call: Call) -> Sequence[Row]:
        """See Backend.infer; a shadow version loads nothing."""
        if call.best_effort or self.loader.is_fixed(call.model_name):
            return await super().infer(call)
        was_loaded = False
        for _ in range(MOST_RELOADS):
            try:
                return await self._infer_loaded(call)
            except StubDied:
                raise
            except (ModelNotFound, ModelUnavailable):
                if was_loaded:
                    raise  # its version does not exist, or it is being recovered
                # If it is loaded now, another gateway may have loaded it again since the call.
                was_loaded = not await self.loader.load_again(call.model_name, call.deadline)
        return await self._infer_loaded(call)

    async def _infer_loaded(self, call: Call) -> Sequence[Row]:
        with self.loader.call(call.model_name, len(call.images)):
            return await super().infer(call)

    async def labels(self, model_name: str, model_version: str) -> Sequence[str]:
        """See Backend.labels."""
        await self._load(model_name)
        return await super().labels(model_name, model_version)

    async def sequence(self, model_name: str, model_version: str) -> TritonSequence:
        """See Backend.sequence."""
        await self._load(model_name)
        return await super().sequence(model_name, model_version)

    async def models(self) -> Sequence[ModelInfo]:
        """Every model of the repository: loaded ones, and the others in their last known state."""
        replicas = [each for each in self._tritons.replicas if each.health.ready] or self._tritons.replicas
        found: dict[str, ModelInfo] = {}
        failure: GatewayError | None = None
        for replica in replicas:
            try:
                for info in await replica.describe_all():
                    if info.ready or info.name not in found:
                        found[info.name] = info
            except GatewayError as error:
                failure = error
        if failure is not None and not found:
            raise failure
        self._described.update({name: info for name, info in found.items() if info.ready})
        for name in await self.loader.not_fixed():
            lost = name in found and found[name].reason == NOT_SERVED and not self._tritons.holders(name)
            if name not in found or lost:
                known = self._described.get(name) or ModelInfo(name, (), ready=False, classes=0)
                found[name] = replace(known, ready=False, reason=ON_DEMAND, loaded=False)
        return [found[name] for name in sorted(found)]

    async def model(self, name: str) -> ModelInfo:
        """One of `models`; loads a model that was never loaded, since nothing else is known of it."""
        found = {info.name: info for info in await self.models()}
        if name in found and not found[name].loaded and name not in self._described:
            await self._load(name)
            found = {info.name: info for info in await self.models()}
        if name in found:
            return found[name]
        if any(replica.health.lacks(name) for replica in self._tritons.replicas):
            raise ModelUnavailable(NOT_SERVED)
        raise ModelNotFound(f"There is no model {name!r} that classifies images; {LIST_HINT}")

    async def load(self, name: str) -> None:
        """Load a model, or reload it where it is loaded; see Backend.load."""
        self.loader.forget_failure(name)
        if self.loader.is_fixed(name):
            await super().load(name)
            return
        if not (holders := self._tritons.holders(name)):
            await self._load(name, LOAD_TIMEOUT_SECONDS)
        for replica in holders:
            await replica.load(name)
            await replica.checker.add(name)

    async def unload(self, name: str) -> None:
        """Unload a model where it is loaded; the next request for it loads it again."""
        if self.loader.is_fixed(name):
            await super().unload(name)
            return
        holders = self._tritons.holders(name)
        if not holders and name not in await self.loader.not_fixed():
            raise ModelNotFound(f"There is no model {name!r} in Triton's repository.")
        for replica in holders:
            replica.health.forget(await replica.unload(name))

    async def _load(self, model_name: str, seconds: float = 0.0) -> None:
        deadline = Deadline.after(seconds or self.loader.load_seconds)
        await self.loader.loaded(model_name, deadline)
