"""API keys of tests."""

from pathlib import Path

from gateway.plugins.keys.key_file import add_key
from gateway.plugins.keys.quota import read_quota


def key_of(file: Path, name: str = "app", **quota: str) -> dict[str, str]:
    """The header with a new key, which is added to a file, with a quota if there are options of one."""
    return {"X-API-Key": add_key(file, name, read_quota(quota))}
