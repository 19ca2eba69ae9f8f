"""Builds the backend with models on demand from the settings."""

from gateway.hooks import Plugins
from gateway.settings import Settings
from gateway.triton.opening import open_pool, options
from gateway_machine.gpus import gpu_count
from gateway_plugins.demand.backend import DemandBackend
from gateway_plugins.demand.choice import Budget
from gateway_plugins.demand.loader import DemandLoader, LoadPolicy
from gateway_plugins.demand.memory import ModelDescriptions
from gateway_plugins.demand.settings import DemandSettings


def open_backend(settings: Settings, plugins: Plugins) -> DemandBackend:
    """The backend of the settings."""
    demand = DemandSettings.of(settings)
    pool = open_pool(settings, plugins, on_demand=True)
    # A Triton elsewhere has GPUs if there is a budget for them.
    gpus = gpu_count() if settings.model_repository else int(demand.models_gpu_memory_bytes > 0)
    loader = DemandLoader(
        pool,
        fixed=(settings.model, *settings.load_models),
        policy=LoadPolicy(
            Budget(demand.models_memory_bytes, demand.models_gpu_memory_bytes),
            load_seconds=demand.models_load_seconds,
            kept_seconds=demand.models_kept_seconds,
            spread=demand.models_prefetch,
            max_waiting=settings.max_images_waiting,
        ),
        descriptions=ModelDescriptions(settings.model_repository, gpus=gpus),
    )
    return DemandBackend(pool, loader, **options(settings, plugins))
