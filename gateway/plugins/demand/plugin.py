"""Models on demand: loaded when a request needs them, and unloaded for others."""

from typing import TYPE_CHECKING

from gateway.hooks import Plugin
from gateway.machine.gpus import gpu_count
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.plugins.demand.backend import DemandBackend


class Demand(Plugin):
    """Does nothing without a budget (`models_memory_bytes`)."""

    metrics = "gateway.plugins.demand.metrics"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

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
        loader = DemandLoader(
            pool,
            fixed=(settings.model, *settings.load_models),
            budget=Budget(settings.models_memory_bytes, settings.models_gpu_memory_bytes),
            descriptions=ModelDescriptions(settings.model_repository, gpus=gpus),
            max_waiting=settings.max_images_waiting,
        )
        return DemandBackend(pool, loader, settings)
