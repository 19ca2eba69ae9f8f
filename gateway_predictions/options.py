"""What the process that writes the log has to know of the settings."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """The settings that the writer needs."""

    url: str
    file_rows: int
    file_bytes: int
    file_seconds: float
    keep_days: int
    keep_bytes: int
    source: str = ""
    """The name of this service in events."""
