"""The limits of frames and explanations."""

from typing import ClassVar

from gateway.errors import InvalidParameter, TooCostly, TooManyFiles, TooManyFrames
from gateway.settings import GIB, FixedLimit, FixedLimits, Section

MAX_FRAMES = 1_000
"""Frames of all files in a request with `frames`; more can be asked for in several requests."""
MAX_MASKS = 2_000
"""Masked copies of an image in one explanation: the map of RISE barely changes beyond."""
MAX_MASKED_BYTES = GIB
"""Bytes of the masked copies of one explanation; ask for fewer masks."""


class MediaSettings(Section):
    """Frames of animations, and explanations."""

    fixed_limits: ClassVar[FixedLimits] = {
        "max_frames": FixedLimit(MAX_FRAMES, "frames", TooManyFrames),
        "max_masks": FixedLimit(MAX_MASKS, "masks", InvalidParameter),
        "max_masked_bytes": FixedLimit(MAX_MASKED_BYTES, "bytes", TooCostly),
        "max_explained": FixedLimit(1, "images", TooManyFiles),
    }
