"""The settings of frames over WebSockets; those of all streams are gateway.settings.StreamSettings."""

from pydantic import Field

from gateway.settings import Section


class FrameSettings(Section):
    """Frames over WebSockets."""

    stream_frames_waiting: int = Field(2, ge=1, le=1_000)
    """Frames of one stream that may wait; at the limit the oldest are dropped, or with `drop=never` new ones wait."""
