"""Builds the backend with models on demand from the settings; gateway.app imports it only if that is set."""

from collections.abc import Callable

from gateway.settings import Settings
from gateway.triton.demand.backend import DemandBackend
from gateway.triton.demand.loader import DemandLoader, LoadPolicy
from gateway.triton.demand.memory import HOST, Amounts, Budget, LocalMeter, MetricsMeter
from gateway.triton.footprint import SERVER_BYTES, need
from gateway.triton.model_config import read_model_configs, steps
from gateway.triton.pool import TritonPool
from gateway.triton.quarantine import Quarantine
from gateway.triton.seal import Seal


def open_backend(
    settings: Settings,
    pool: TritonPool,
    *,
    seal: Seal,
    quarantine: Quarantine,
    hold_seconds: float,
    check_load: Callable[[str], str | None] | None,
) -> DemandBackend:
    """The backend of the settings over a pool that was made with `on_demand`."""
    repository = settings.model_repository
    port = settings.triton_metrics_port
    loader = DemandLoader(
        pool,
        fixed=(settings.model, *settings.load_models),
        policy=LoadPolicy(
            Budget(settings.models_memory_bytes, settings.models_gpu_memory_bytes),
            load_seconds=settings.models_load_seconds,
            kept_seconds=settings.models_kept_seconds,
            prefetch=settings.models_prefetch,
            max_waiting=settings.max_images_waiting,
        ),
        meter=MetricsMeter(port) if repository is None else LocalMeter(port, repository),
        estimate=lambda name: estimated(settings, name),
    )
    return DemandBackend(
        pool,
        loader,
        model_name=settings.model,
        seal=seal,
        quarantine=quarantine,
        hold_seconds=hold_seconds,
        check_load=check_load,
    )


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
