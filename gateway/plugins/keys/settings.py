"""The settings of API keys and their quotas."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, SecretStr

from gateway.settings import Allowed, Section
from gateway.values.setting_values import not_empty

KeyFilePath = Annotated[Path | None, BeforeValidator(not_empty("an API without keys"))]

STORE_CLIENT = "redis"
"""The package of the extra fleet."""
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


class KeySettings(Section):
    """API keys."""

    api_keys_file: KeyFilePath = None
    """File of API keys (`gateway key`); without it no key is needed."""
    admin_keys_file: KeyFilePath = None
    """File of the keys that may load and unload models; without it no client can."""
    rate_store_url: Annotated[
        SecretStr | None, Allowed("a URL: redis://…, rediss://… or unix://…"), AfterValidator(_rate_store)
    ] = None
    """Redis or Valkey in which processes count the images of keys; needs the extra fleet."""
