"""API keys: files of their hashes, and quotas: rates, shares, models and routes of each key."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from gateway.findings import Finding
from gateway.hooks import Authenticator, Plugin, Runtime
from gateway.plugins.keys.key_file import KeysError, read_keys
from gateway.plugins.keys.settings import STORE_CLIENT, KeySettings
from gateway.settings import Settings, given_variables, variable
from gateway.values.extras import require
from gateway.values.variables import API_KEY

if TYPE_CHECKING:
    from gateway.plugins.keys.rates import Rates


class ApiKeys(Plugin):
    """Requires keys if the settings name a file of them; a key without a quota has no additional limits."""

    settings = KeySettings
    metrics = "gateway.plugins.keys.metrics"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._rates: Rates | None = None

    @classmethod
    def check(cls, settings: Settings) -> None:
        """Raise KeysError without a usable file, ExtraMissing without the client of the store."""
        own = KeySettings.of(settings)
        if own.api_keys_file is not None:
            read_keys(own.api_keys_file)
        elif API_KEY in given_variables():
            raise KeysError(
                f"{API_KEY} is the key that commands send, and would not protect this service: unset it, or create a "
                f"key with `gateway key add NAME --file FILE` and set {variable('api_keys_file')}"
            )
        if own.admin_keys_file is not None:
            read_keys(own.admin_keys_file, admin=True)
        if own.rate_store_url is not None:
            require(variable("rate_store_url"), "fleet", STORE_CLIENT)

    @classmethod
    async def examine(cls, settings: Settings) -> Sequence[Finding]:
        """The files of keys."""
        from gateway.plugins.keys.doctor import key_file

        own = KeySettings.of(settings)
        return [key_file(own.api_keys_file), key_file(own.admin_keys_file, admin=True)]

    def authenticators(self) -> Sequence[Authenticator]:
        """The files of keys, if the settings name any."""
        own = KeySettings.of(self._settings)
        if own.api_keys_file is not None:
            from gateway.plugins.keys.rates import Rates

            self._rates = Rates(None if own.rate_store_url is None else own.rate_store_url.get_secret_value())
        from gateway.plugins.keys.authenticator import KeyFiles

        files = KeyFiles(self._settings, self._rates)
        return (files,) if own.api_keys_file or own.admin_keys_file else ()

    @asynccontextmanager
    async def lifespan(self, runtime: Runtime) -> AsyncIterator[None]:
        """The connections to the store of rates."""
        del runtime
        try:
            yield
        finally:
            if self._rates is not None:
                await self._rates.close()
