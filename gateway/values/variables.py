"""Names and values of settings that modules below the settings need."""

from enum import StrEnum

ENV_PREFIX = "GATEWAY_"
API_KEY = "GATEWAY_API_KEY"
"""The variable with the API key that commands send. It is no setting: a service reads keys from a file."""
FIXED_VALUES = "GATEWAY_FIXED_VALUES"
"""The variable in which a process of the gateway passes fixed values (see Fixed) to its child processes, as JSON."""
NO_SETTINGS = frozenset({API_KEY, FIXED_VALUES, "GATEWAY_DEVICES"})
"""Variables that other commands read: they may be in the file .env of a service."""


class Access(StrEnum):
    """Which API key a route needs, if keys are required: none, any key, or an admin key."""

    OPEN = "open"
    KEY = "key"
    ADMIN = "admin"


class DecodeMode(StrEnum):
    """Where images are decoded: `auto` where it is cheapest, `always` in the gateway, `never` there (but in Triton)."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


def variable(field: str) -> str:
    """The environment variable that sets a field."""
    return f"{ENV_PREFIX}{field.upper()}"
