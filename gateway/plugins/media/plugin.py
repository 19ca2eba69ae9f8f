"""Frames of animations, and explanations by masked copies."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from gateway.hooks import Plugin
from gateway.plugins.media.settings import MAX_FRAMES, MediaSettings

if TYPE_CHECKING:
    from fastapi import APIRouter

    from gateway.inference.request_spec import Expansion


class Media(Plugin):
    """The parameter `frames` of POST /predict, and POST /explain."""

    settings = MediaSettings

    def routers(self) -> "Sequence[APIRouter]":
        """POST /explain."""
        from gateway.plugins.media.explain_route import router

        return (router,)

    def expansions(self) -> "Mapping[str, Callable[[str], Expansion]]":
        """The frames that a request wants."""
        return {"frames": _frames}


def _frames(value: str) -> "Expansion":
    from gateway.plugins.media.animation import Frames, read_frames

    return Frames(read_frames(value, MAX_FRAMES))
