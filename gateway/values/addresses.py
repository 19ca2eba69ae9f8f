"""What an address says of where it is."""


def is_loopback(address: str) -> bool:
    """Whether `host:port` is on this machine, by its name or number alone."""
    host = address.rpartition(":")[0].strip("[]")
    return host in {"localhost", "::1"} or host.startswith("127.")
