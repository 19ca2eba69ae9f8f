"""The settings of API keys' quotas."""

from typing import Annotated

from pydantic import AfterValidator, SecretStr

from gateway.settings import Allowed, Section
from gateway.values import setting_values


def _rate_store(url: SecretStr | None) -> SecretStr | None:
    return None if url is None else SecretStr(setting_values.rate_store(url.get_secret_value()))


class RateSettings(Section):
    """Rates of API keys that a fleet shares."""

    rate_store_url: Annotated[
        SecretStr | None, Allowed("a URL: redis://…, rediss://… or unix://…"), AfterValidator(_rate_store)
    ] = None
    """Redis or Valkey in which gateways share the rates of keys, such as redis://host:6379/0. Needs the extra fleet."""
