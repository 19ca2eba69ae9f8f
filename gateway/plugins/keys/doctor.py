"""The checks of the key files, and of the store of rates that GATEWAY_RATE_STORE_URL names."""

import asyncio
import time
from pathlib import Path

from gateway.findings import Finding, fail, ok, warn
from gateway.plugins.keys.key_file import KeysError, read_keys
from gateway.plugins.keys.quota import Rate
from gateway.plugins.keys.settings import KeySettings
from gateway.settings import Settings, variable
from gateway.values.extras import ExtraMissing

CHECK = "rate store"
KEY = "doctor?"
"""No name of an API key has a question mark."""
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


async def rate_store(settings: Settings) -> list[Finding]:
    """Whether the store of rates counts them, as the gateway asks it; nothing if none is set."""
    from gateway.plugins.keys import rates  # imports `limits`, which is slow

    url = KeySettings.of(settings).rate_store_url
    if url is None:
        return []
    try:
        store = rates.Store(url.get_secret_value())
    except ExtraMissing as exc:
        return [fail(CHECK, str(exc))]
    began = time.monotonic()
    try:
        async with asyncio.timeout(rates.TIMEOUT_SECONDS):
            await store.take(KEY, Rate(1, "s"))
    except store.failures as error:
        return [
            warn(
                CHECK,
                f"it does not answer ({rates.reason_of(error)}), so each process counts a key's images by itself",
                f"start it, or correct {variable('rate_store_url')}",
            )
        ]
    finally:
        await store.close()
    return [ok(CHECK, f"it counts rates, and answered in {1_000 * (time.monotonic() - began):.1f} ms")]
