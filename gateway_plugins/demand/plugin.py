"""Models on demand: loaded when a request needs them, and unloaded for others; and the memory that models take."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.findings import Finding
from gateway.hooks import Plugin, Plugins
from gateway.settings import Settings
from gateway_machine.memory import usable_memory
from gateway_plugins.demand.settings import DemandSettings

if TYPE_CHECKING:
    from gateway.inference.backend import Backend


class Demand(Plugin):
    """Checks the memory of models to load; everything else is only done if models are loaded on demand."""

    settings = DemandSettings
    metrics = "gateway_plugins.demand.metrics"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @classmethod
    async def check_triton(cls, settings: Settings, address: str) -> Sequence[Finding]:
        """Whether a Triton loads only what is needed."""
        if not DemandSettings.of(settings).on_demand:
            return ()
        from gateway.triton.connect import connector
        from gateway_plugins.demand.doctor import check_triton

        endpoint = connector(settings)(address)
        try:
            return await check_triton(endpoint, settings)
        finally:
            await endpoint.close()

    def backend(self, plugins: Plugins) -> "Backend | None":
        """See Plugin.backend."""
        if not DemandSettings.of(self._settings).on_demand:
            return None
        from gateway_plugins.demand.opening import open_backend

        return open_backend(self._settings, plugins)

    def check_load(self, model_name: str) -> str | None:
        """Compare a model's memory with what is free, if its Triton runs on this machine."""
        repository = self._settings.model_repository
        if repository is None:
            return None
        from gateway_plugins.demand.footprint import check_load

        return check_load(model_name, repository, usable_memory())
