"""No proxy for this machine's own addresses, whatever the environment says: a proxy could not reach them."""

DIRECT: dict[str, None] = dict.fromkeys(["all://localhost", "all://127.0.0.1", "all://[::1]"])
"""For the `mounts` of httpx's clients."""
