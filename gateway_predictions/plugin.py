"""The prediction log as a plug-in of the service."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from gateway.hooks import Plugin, Runtime
from gateway.settings import Settings
from gateway_predictions.request_fields import read_fields
from gateway_predictions.requirements import check_packages, is_collector
from gateway_predictions.settings import PredictionLogSettings

if TYPE_CHECKING:
    from fastapi import APIRouter

    from gateway.inference.observer import Observer
    from gateway_predictions.label_route import Labelling
    from gateway_predictions.service_log import ServiceLog


class PredictionLog(Plugin):
    """Logs results, and the feedback on them; does nothing but refuse feedback unless a log is set."""

    settings = PredictionLogSettings
    metrics = "gateway_predictions.metrics"

    def __init__(self, settings: Settings) -> None:
        self._settings = PredictionLogSettings.of(settings)
        self._labelling: Labelling | None = None
        self.log = _open(settings) if self._settings.log_predictions is not None else None
        self.idle_hooks = ("request_fields",) if self.log is None else ()

    @classmethod
    def check(cls, settings: Settings) -> None:
        """Raise LogUnavailable if a log is set and a package for it is missing."""
        url = PredictionLogSettings.of(settings).log_predictions
        if url is not None:
            check_packages(url)

    def routers(self) -> "Sequence[APIRouter]":
        """POST /feedback, and the page to label logged images."""
        from gateway_predictions import feedback_route, label_route

        settings = self._settings
        url = settings.log_predictions
        if settings.label_queue and settings.log_predictions_images and url is not None and not is_collector(url):
            self._labelling = label_route.Labelling(url)
        return feedback_route.router(self.log), label_route.router(self._labelling)

    def lifespan(self, runtime: Runtime) -> AbstractAsyncContextManager[None]:
        """Ends the process that reads the log."""
        del runtime
        return self._reading()

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            if self._labelling is not None:
                await self._labelling.end()

    def request_fields(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """The fields of the client's choice; raises InvalidParameter."""
        if self.log is None:
            return {}
        name = self._settings.log_predictions_fields_header
        text = headers.get(name, "")
        return read_fields(text, name) if text else {}

    def observer(self) -> "Observer | None":
        """What logs results."""
        return self.log


def _open(settings: Settings) -> "ServiceLog":
    from gateway_predictions.service_log import ServiceLog  # loads PyArrow's companions only if a log is set

    return ServiceLog(settings)
