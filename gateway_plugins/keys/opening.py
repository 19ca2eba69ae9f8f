"""Opens the store of rates that the settings name."""

from pathlib import Path

from gateway.settings import Settings
from gateway_plugins.keys.rates import ProcessRates, Rates, WorkerRates, require_client
from gateway_plugins.keys.settings import KeySettings


def open_rates(settings: Settings, folder: Path | None) -> Rates:
    """Where the rates of API keys are counted; `folder` is what workers share.

    Raises RateStoreUnavailable if a store is set without its client.
    """
    local = ProcessRates() if folder is None else WorkerRates(folder)
    url = KeySettings.of(settings).rate_store_url
    if url is None:
        return local
    require_client()
    from gateway_plugins.keys.rate_store import StoredRates  # an optional dependency

    return StoredRates(url.get_secret_value(), local)
