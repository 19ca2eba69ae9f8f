"""Builds the backend with models on demand from the settings."""

from collections.abc import Sequence

from gateway.settings import Settings
from gateway.triton.footprint import SERVER_BYTES, need
from gateway.triton.model_config import read_model_configs, steps
from gateway.triton.opening import open_pool, options
from gateway.values.setting_values import Shares
from gateway_plugins.demand.backend import DemandBackend
from gateway_plugins.demand.loader import DemandLoader, LoadPolicy
from gateway_plugins.demand.memory import HOST, Amounts, Budget, LocalMeter, MetricsMeter
from gateway_plugins.demand.settings import DemandSettings


def open_backend(settings: Settings, versions: Sequence[Shares]) -> DemandBackend:
    """The backend of the settings."""
    demand = DemandSettings.of(settings)
    # Each Triton has other models, so a gateway needs all of them.
    pool = open_pool(settings, aperture=0, splits=versions, on_demand=True)
    repository = settings.model_repository
    port = demand.triton_metrics_port
    loader = DemandLoader(
        pool,
        fixed=(settings.model, *settings.load_models),
        policy=LoadPolicy(
            Budget(demand.models_memory_bytes, demand.models_gpu_memory_bytes),
            load_seconds=demand.models_load_seconds,
            kept_seconds=demand.models_kept_seconds,
            prefetch=demand.models_prefetch,
            max_waiting=settings.max_images_waiting,
        ),
        meter=MetricsMeter(port) if repository is None else LocalMeter(port, repository),
        estimate=lambda name: estimated(settings, name),
    )
    return DemandBackend(pool, loader, **options(settings))


def estimated(settings: Settings, name: str) -> Amounts:
    """The estimated host memory of a model in the repository on this machine, with its steps; {} if it has none."""
    if settings.model_repository is None:
        return {}
    configs = read_model_configs(settings.model_repository, "configs/sized.pbtxt")
    if name not in configs:
        return {}
    parts = {name, *steps(configs[name])}
    found = need(settings.model_repository, {part: config for part, config in configs.items() if part in parts})
    return {HOST: found.least_bytes - SERVER_BYTES}
