"""Opens the store of rates that the settings name."""

from pathlib import Path

from gateway.settings import Settings
from gateway.tenants.rates import ProcessRates, Rates, WorkerRates, require_client


def open_rates(settings: Settings, folder: Path | None) -> Rates:
    """Where the rates of API keys are counted; `folder` is what workers share.

    Raises RateStoreUnavailable if a store is set without its client.
    """
    local = ProcessRates() if folder is None else WorkerRates(folder)
    if settings.rate_store_url is None:
        return local
    require_client()
    from gateway.tenants.rate_store import StoredRates  # an optional dependency

    return StoredRates(settings.rate_store_url.get_secret_value(), local)
