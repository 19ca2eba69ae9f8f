"""The prediction log as a plug-in of the service."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from gateway.hooks import Plugin, Runtime
from gateway.settings import Settings
from gateway_models.predictions.settings import PredictionLogSettings
from gateway_models.predictions.store import check_packages

if TYPE_CHECKING:
    from fastapi import APIRouter

    from gateway.inference.request import Observer
    from gateway_models.predictions.service_log import ServiceLog


class PredictionLog(Plugin):
    """Logs results, and the feedback on them; does nothing but refuse feedback unless a log is set."""

    settings = PredictionLogSettings
    metrics = "gateway_models.predictions.metrics"

    def __init__(self, settings: Settings) -> None:
        self.log = None if PredictionLogSettings.of(settings).log_predictions is None else _open(settings)

    @classmethod
    def check(cls, settings: Settings) -> None:
        """Raise LogUnavailable if a log is set and a package for it is missing."""
        url = PredictionLogSettings.of(settings).log_predictions
        if url is not None:
            check_packages(url)

    def routers(self) -> "Sequence[APIRouter]":
        """POST /feedback."""
        from gateway_models.predictions import feedback_route

        return (feedback_route.router(self.log),)

    def observers(self) -> "Sequence[Observer]":  # type: ignore[override]  # the argument is not needed
        """The observer that logs results."""
        return () if self.log is None else (self.log,)

    @asynccontextmanager
    async def lifespan(self, runtime: Runtime) -> AsyncIterator[None]:  # noqa: ARG002
        """While the service runs, the log is written."""
        if self.log is None:
            yield
            return
        self.log.start()
        try:
            yield
        finally:
            await self.log.close()


def _open(settings: Settings) -> "ServiceLog":
    from gateway_models.predictions.service_log import ServiceLog  # loads numpy's companions only if a log is set

    return ServiceLog(settings)
