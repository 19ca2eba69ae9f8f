"""Models on demand: loaded when a request needs them, and unloaded for others."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.hooks import Plugin
from gateway.machine.gpus import gpu_count
from gateway.settings import Settings
from gateway.values.clients import client_of

if TYPE_CHECKING:
    from gateway.inference.request import Image, Step
    from gateway.plugins.demand.backend import DemandBackend
    from gateway.plugins.demand.loader import DemandLoader


class Demand(Plugin):
    """Does nothing without a budget (`models_memory_bytes`)."""

    metrics = "gateway.plugins.demand.metrics"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.loader: DemandLoader | None = None
        """Of the backend, if it is this plug-in's."""

    def backend(self) -> "DemandBackend | None":
        """See Plugin.backend."""
        settings = self._settings
        if not settings.models_memory_bytes:
            return None
        from gateway.plugins.demand.backend import DemandBackend
        from gateway.plugins.demand.loader import DemandLoader
        from gateway.plugins.demand.models import Budget, ModelDescriptions
        from gateway.triton.opening import open_pool

        pool = open_pool(settings, on_demand=True)
        # A Triton elsewhere has GPUs if there is a budget for them.
        gpus = gpu_count() if settings.model_repository else int(settings.models_gpu_memory_bytes > 0)
        self.loader = DemandLoader(
            pool,
            fixed=(settings.model, *settings.load_models),
            budget=Budget(settings.models_memory_bytes, settings.models_gpu_memory_bytes),
            descriptions=ModelDescriptions(settings.model_repository, gpus=gpus),
            max_waiting=settings.max_images_waiting,
        )
        return DemandBackend(pool, self.loader, settings)

    def steps(self) -> "Sequence[Step]":
        """The wait for a model."""
        return () if self.loader is None else (self._load_model,)

    async def _load_model(self, image: "Image") -> None:
        """Wait until the model of an image is loaded; raises what `DemandLoader.loaded` raises."""
        assert self.loader is not None
        spec = image.spec
        with image.request.stages["wait"]:
            await self.loader.loaded(spec.model_name, image.deadline, client_of(spec.key, spec.address))
