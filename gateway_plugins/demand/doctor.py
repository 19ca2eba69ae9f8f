"""Checks of a Triton whose models are loaded on demand."""

from gateway.errors import GatewayError
from gateway.findings import Finding, ok, warn
from gateway.settings import Settings, variable
from gateway.triton.endpoint import TritonEndpoint
from gateway.triton.health.expected import READY
from gateway_plugins.demand.memory import Meter, MetricsMeter
from gateway_plugins.demand.settings import DemandSettings


async def check_triton(endpoint: TritonEndpoint, settings: Settings, meter: Meter | None = None) -> list[Finding]:
    """Whether this Triton loads only what is needed, and shows its memory."""
    meter = meter or MetricsMeter(DemandSettings.of(settings).triton_metrics_port)
    try:
        return [await _start(endpoint, settings), *await _memory(endpoint, settings, meter)]
    except GatewayError:
        return []  # reported by other checks
    finally:
        await meter.close()


async def _start(endpoint: TritonEndpoint, settings: Settings) -> Finding:
    index = await endpoint.index()
    names = {model.name for model in index.models}
    ready = {model.name for model in index.models if model.state == READY}
    if names > {settings.model} and ready == names:
        return warn(
            "models on demand",
            f"{endpoint.address} has loaded all {len(names)} models of its repository",
            f"if it does so when it starts, replace its option --load-model=* by --load-model={settings.model}",
        )
    return ok("models on demand", f"{endpoint.address} has loaded {len(ready)} of {len(names)} models")


async def _memory(endpoint: TritonEndpoint, settings: Settings, meter: Meter) -> list[Finding]:
    if settings.model_repository is not None or await meter.machine(endpoint.address):
        return []
    return [
        warn(
            "models on demand",
            f"the metrics of {endpoint.address} cannot be read, so {variable('models_memory_bytes')} has no effect",
            f"open their port, or correct {variable('triton_metrics_port')}",
        )
    ]
