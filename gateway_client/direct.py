"""Local addresses bypass the proxies of the environment, which could not reach them."""

DIRECT: dict[str, None] = dict.fromkeys(["all://localhost", "all://127.0.0.1", "all://[::1]"])
"""For the `mounts` of httpx's clients."""
