"""The settings of frames and explanations."""

from typing import ClassVar

from pydantic import Field

from gateway.errors import InvalidParameter, TooCostly, TooManyFiles, TooManyFrames
from gateway.settings import GIB, MIB, FixedLimits, Limits, Section

MAX_EXPLAINED = 1
"""Images in one request for an explanation."""


class MediaSettings(Section):
    """Frames of animations, and explanations."""

    limits: ClassVar[Limits] = {
        "max_frames": ("frames", TooManyFrames),
        "max_masks": ("masks", InvalidParameter),
        "max_masked_bytes": ("bytes", TooCostly),
    }
    fixed_limits: ClassVar[FixedLimits] = {"max_explained": (MAX_EXPLAINED, "images", TooManyFiles)}

    max_frames: int = Field(1_000, ge=1, le=10_000)
    """Frames of all files in a request with `frames`; a file with more gets `too_many_frames`."""
    max_masks: int = Field(2_000, ge=1, le=10_000)
    """Masked copies of an image in one explanation; more are refused with 422 `invalid_parameter`."""
    max_masked_bytes: int = Field(GIB, ge=MIB, le=64 * GIB)
    """Bytes of the masked copies of one explanation; more are refused with `too_costly`."""
