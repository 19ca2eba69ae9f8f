"""Quotas of API keys: rates, shares, models and routes of each."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from gateway.findings import Finding
from gateway.hooks import Callers, Plugin, Runtime
from gateway.keys import ReadOptions
from gateway.server.workers import shared_file
from gateway.settings import Settings
from gateway_plugins.tenants.quota import read_quota
from gateway_plugins.tenants.rates import require_client
from gateway_plugins.tenants.settings import RateSettings

if TYPE_CHECKING:
    from fastapi import APIRouter


class TenantsOfKeys(Plugin):
    """Does nothing unless a key of the file has a quota."""

    settings = RateSettings
    metrics = "gateway_plugins.tenants.metrics"

    def __init__(self, settings: Settings) -> None:
        from gateway_plugins.tenants.opening import open_rates
        from gateway_plugins.tenants.tenant import Tenants

        self._rates = open_rates(settings, shared_file("rates"))
        self._tenants = Tenants(settings, self._rates)

    @classmethod
    def check(cls, settings: Settings) -> None:
        """Raise RateStoreUnavailable if a store of rates is set, but its client is not installed."""
        if RateSettings.of(settings).rate_store_url is not None:
            require_client()

    @classmethod
    async def examine(cls, settings: Settings) -> Sequence[Finding]:
        """Whether the store of rates answers."""
        from gateway_plugins.tenants.doctor import rate_store

        return await rate_store(settings)

    @classmethod
    def key_options(cls) -> ReadOptions:
        """The quota of a key."""
        return read_quota

    def callers(self) -> Callers:
        """The tenants."""
        return self._tenants

    def routers(self) -> "Sequence[APIRouter]":
        """GET /limits."""
        from gateway_plugins.tenants.limits_route import router

        return (router,)

    def lifespan(self, runtime: Runtime) -> AbstractAsyncContextManager[None]:
        """The connections to the store of rates."""
        del runtime
        return self._closing()

    @asynccontextmanager
    async def _closing(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self._rates.close()
