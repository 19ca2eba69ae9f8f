"""Images by URL: bodies in JSON may name images, which the service fetches."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING

from gateway.hooks import Fetcher, Plugin, Runtime
from gateway.plugins.urls.settings import UrlSettings
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.limits.pools import Pool
    from gateway.plugins.urls.fetcher import UrlFetcher


class Urls(Plugin):
    """Does nothing unless URLs are allowed."""

    settings = UrlSettings
    metrics = "gateway.plugins.urls.metrics"
    errors = "gateway.plugins.urls.errors"

    def __init__(self, settings: Settings) -> None:
        self._fetcher: UrlFetcher | None = None
        self._settings = settings
        self._is_on = bool(UrlSettings.of(settings).fetch_urls)

    def lifespan(self, runtime: Runtime) -> AbstractAsyncContextManager[None]:
        """The fetcher's threads and connections."""
        return self._fetching(runtime.uploads) if self._is_on else nullcontext()

    def fetchers(self) -> Sequence[Fetcher]:
        """The fetcher of all URLs."""
        return () if self._fetcher is None else (self._fetcher,)

    @asynccontextmanager
    async def _fetching(self, uploads: "Pool") -> AsyncIterator[None]:
        from gateway.plugins.urls.fetcher import UrlFetcher

        self._fetcher = fetcher = UrlFetcher(self._settings, uploads)
        try:
            yield
        finally:
            fetcher.close()
