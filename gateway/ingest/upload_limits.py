"""The limits of one request and its files."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.settings import Settings


@dataclass(frozen=True, slots=True)
class Limits:
    """Each field is the setting of the same name."""

    max_files: int
    max_file_bytes: int
    max_request_bytes: int
    max_image_pixels: int
    max_image_side: int
    max_header_bytes: int
    max_part_header_bytes: int

    @classmethod
    def from_settings(cls, settings: "Settings") -> "Limits":
        """The limits of the settings."""
        return cls(**{field.name: getattr(settings, field.name) for field in fields(cls)})
