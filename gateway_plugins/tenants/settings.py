"""The settings of API keys' quotas."""

import re
from typing import Annotated

from pydantic import AfterValidator, SecretStr

from gateway.settings import Allowed, Section

_RATE_STORE = re.compile(r"(?P<scheme>(?:redis|valkey)s?://(?=[^/])|unix:///)(?P<rest>\S+)")


def _checked(url: str) -> str:
    """Check the URL of a Redis or Valkey, and convert Valkey's scheme to Redis'; the URL may have a password."""
    match = _RATE_STORE.fullmatch(url)
    if match is None:
        msg = "must be the URL of a Redis or Valkey, such as redis://host:6379/0, rediss://… for TLS, or unix:///path"
        raise ValueError(msg)
    return match["scheme"].replace("valkey", "redis") + match["rest"]


def _rate_store(url: SecretStr | None) -> SecretStr | None:
    return None if url is None else SecretStr(_checked(url.get_secret_value()))


class RateSettings(Section):
    """Rates of API keys that a fleet shares."""

    rate_store_url: Annotated[
        SecretStr | None, Allowed("a URL: redis://…, rediss://… or unix://…"), AfterValidator(_rate_store)
    ] = None
    """Redis or Valkey in which gateways share the rates of keys, such as redis://host:6379/0. Needs the extra fleet."""
