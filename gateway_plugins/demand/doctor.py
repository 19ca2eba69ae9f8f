"""Checks of a Triton whose models are loaded on demand."""

from gateway.errors import GatewayError
from gateway.findings import Finding, ok, warn
from gateway.settings import Settings
from gateway.triton.endpoint import TritonEndpoint
from gateway.triton.health.expected import READY


async def check_triton(endpoint: TritonEndpoint, settings: Settings) -> list[Finding]:
    """Whether this Triton loads only what is needed."""
    try:
        index = await endpoint.index()
    except GatewayError:
        return []  # reported by other checks
    names = {model.name for model in index.models}
    ready = {model.name for model in index.models if model.state == READY}
    if names > {settings.model} and ready == names:
        return [
            warn(
                "models on demand",
                f"{endpoint.address} has loaded all {len(names)} models of its repository",
                f"if it does so when it starts, replace its option --load-model=* by --load-model={settings.model}",
            )
        ]
    return [ok("models on demand", f"{endpoint.address} has loaded {len(ready)} of {len(names)} models")]
