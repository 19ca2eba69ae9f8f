"""The check of the store that GATEWAY_RATE_STORE_URL names: whether it counts rates, as the gateway asks it."""

import time

from gateway.findings import Finding, fail, ok, warn
from gateway.settings import Settings, variable
from gateway_plugins.tenants.quota import Rate
from gateway_plugins.tenants.rates import ProcessRates, RateStoreUnavailable, require_client
from gateway_plugins.tenants.settings import RateSettings

CHECK = "rate store"
KEY = "doctor?"
"""No name of an API key has a question mark."""


async def rate_store(settings: Settings) -> list[Finding]:
    """The finding, if a store is set."""
    url = RateSettings.of(settings).rate_store_url
    if url is None:
        return []
    try:
        require_client()
    except RateStoreUnavailable as exc:
        return [fail(CHECK, str(exc))]
    from gateway_plugins.tenants.rate_store import FAILURES, StoredRates, reason_of  # an optional dependency

    rates = StoredRates(url.get_secret_value(), ProcessRates())
    began = time.monotonic()
    try:
        await rates.ask(KEY, Rate(1.0, 1, ""), 0.0)
    except FAILURES as error:
        return [
            warn(
                CHECK,
                f"it does not answer ({reason_of(error)}), so each gateway applies the whole rate of a key by itself",
                f"start it, or correct {variable('rate_store_url')}",
            )
        ]
    finally:
        await rates.close()
    return [ok(CHECK, f"it counts rates, and answered in {1_000 * (time.monotonic() - began):.1f} ms")]
