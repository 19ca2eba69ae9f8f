"""The checks of the key files, and of the store of rates that GATEWAY_RATE_STORE_URL names."""

import time
from collections.abc import Callable
from pathlib import Path

from gateway.findings import Finding, fail, ok, warn
from gateway.settings import Settings, variable
from gateway_plugins.keys.key_file import Keys, KeysError, read_admin_keys, read_keys
from gateway_plugins.keys.quota import Rate
from gateway_plugins.keys.settings import KeySettings

CHECK = "rate store"
KEY = "doctor?"
"""No name of an API key has a question mark."""


def api_keys(path: Path | None) -> Finding:
    """The file of API keys."""
    if path is None:
        name = variable("api_keys_file")
        return ok(
            "API keys", f"off: anyone who reaches the port can use the API; {name} and gateway key add switch them on"
        )
    return _keys("API keys", path, read_keys)


def admin_keys(path: Path | None) -> Finding:
    """The file of keys that may load and unload models."""
    if path is None:
        return ok("admin keys", "off: models cannot be loaded or unloaded over HTTP")
    return _keys("admin keys", path, read_admin_keys)


def _keys(title: str, path: Path, read: Callable[[Path], Keys]) -> Finding:
    try:
        count = len(read(path).digests)
        readable = path.stat().st_mode & 0o004
    except KeysError as exc:
        return fail(title, str(exc))
    if not count:
        return warn(title, f"{path} has no keys, so every request is refused", f"gateway key add NAME --file {path}")
    text = f"{count} in {path}"
    if readable:
        return warn(title, f"{text}, which every user of this machine can read", f"chmod o-r {path}")
    return ok(title, text)


async def rate_store(settings: Settings) -> list[Finding]:
    """Whether the store of rates counts them, as the gateway asks it; nothing if none is set."""
    from gateway_plugins.keys.rates import RateStoreUnavailable, Store, reason_of  # imports `limits`, which is slow

    url = KeySettings.of(settings).rate_store_url
    if url is None:
        return []
    try:
        store = Store(url.get_secret_value())
    except RateStoreUnavailable as exc:
        return [fail(CHECK, str(exc))]
    began = time.monotonic()
    try:
        await store.take(KEY, Rate(1, "s"))
    except store.failures as error:
        return [
            warn(
                CHECK,
                f"it does not answer ({reason_of(error)}), so each process applies the whole rate of a key by itself",
                f"start it, or correct {variable('rate_store_url')}",
            )
        ]
    finally:
        await store.close()
    return [ok(CHECK, f"it counts rates, and answered in {1_000 * (time.monotonic() - began):.1f} ms")]
