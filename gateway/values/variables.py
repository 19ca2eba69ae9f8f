"""Names and values of settings that modules below the settings need."""

from enum import StrEnum

ENV_PREFIX = "GATEWAY_"


class DecodeMode(StrEnum):
    """Where images are decoded: `auto` where it is cheapest, `always` in the gateway, `never` there (but in Triton)."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


def variable(field: str) -> str:
    """The environment variable that sets a field."""
    return f"{ENV_PREFIX}{field.upper()}"
