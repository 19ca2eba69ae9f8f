"""How many connections the limit of open files (RLIMIT_NOFILE) leaves."""

import resource

import structlog

from gateway.limits.connections import RESERVED

OWN_FILES = 128
"""Files that the process opens besides its connections: decoders, connections to Tritons, logs."""

log = structlog.get_logger("gateway")


def affordable_connections(most: int) -> int:
    """`most` connections, or fewer where the process may not open that many files; raises its soft limit if it can.

    A connection that is accepted without a file left is reset, and so is whatever else needs a file.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = most + RESERVED + OWN_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return most
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    affordable = min(most, max(1, allowed - RESERVED - OWN_FILES))
    if affordable < most:
        log.warning(
            "connections_limited",
            max_connections=affordable,
            configured=most,
            open_files=allowed,
            advice=f"raise the limit of open files to {needed} (ulimit -n)",
        )
    return affordable
