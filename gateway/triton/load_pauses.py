"""Pauses between loads of several models, in which calls that waited for the cores are answered."""

SHORT_SECONDS = 1.0
"""A load that took less started no processes."""
SHARE = 0.25
LONGEST_SECONDS = 5.0


def pause_seconds(load_seconds: float) -> float:
    """How long to load nothing after a load that took `load_seconds`: a quarter of it, at most LONGEST_SECONDS."""
    return 0.0 if load_seconds < SHORT_SECONDS else min(LONGEST_SECONDS, SHARE * load_seconds)
