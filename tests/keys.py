"""API keys of tests."""

from pathlib import Path

from gateway.plugins.keys.key_file import add_key


def key_of(file: Path, name: str = "app", **quota: str) -> dict[str, str]:
    """The header with a new key, which is added to a file, with a quota if there are options of one."""
    return {"X-API-Key": add_key(file, name, [f"{option}={value}" for option, value in quota.items()])}


def remove_key(file: Path, name: str) -> None:
    """Delete the line of a key, as an editor does: the file is replaced."""
    lines = file.read_text().splitlines(keepends=True)
    draft = file.with_name("draft")
    draft.write_text("".join(line for line in lines if not line.startswith(f"{name}:")))
    draft.replace(file)
