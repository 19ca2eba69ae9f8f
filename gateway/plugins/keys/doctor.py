"""The checks of the key files."""

from pathlib import Path

from gateway.findings import Finding, fail, ok, warn
from gateway.plugins.keys.key_file import KeysError, read_keys

NO_API_KEYS = "off: GATEWAY_API_KEYS_FILE and gateway key add switch them on"
NO_ADMIN_KEYS = "off: models cannot be loaded or unloaded over HTTP"


def key_file(path: Path | None, *, admin: bool = False) -> Finding:
    """The file of API keys, or of the admin keys, which may load and unload models."""
    title = "admin keys" if admin else "API keys"
    if path is None:
        return ok(title, NO_ADMIN_KEYS if admin else NO_API_KEYS)
    try:
        count = len(read_keys(path, admin=admin).digests)
        readable = path.stat().st_mode & 0o004
    except KeysError as exc:
        return fail(title, str(exc))
    if not count:
        return warn(title, f"{path} has no keys, so every request is refused", f"gateway key add NAME --file {path}")
    text = f"{count} in {path}"
    if readable:
        return warn(title, f"{text}, which every user of this machine can read", f"chmod o-r {path}")
    return ok(title, text)
