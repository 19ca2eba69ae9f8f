"""WS /stream."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gateway.hooks import Plugin, WebSocketHandlerOf
from gateway_plugins.streams.settings import FrameSettings

if TYPE_CHECKING:
    from fastapi import APIRouter


class Streams(Plugin):
    """Frames of a video or a camera over a WebSocket."""

    settings = FrameSettings
    metrics = "gateway_plugins.streams.metrics"
    errors = "gateway_plugins.streams.errors"

    def websockets(self) -> "Mapping[str, WebSocketHandlerOf]":
        """The connection of a stream."""
        from gateway_plugins.streams.websockets import WebSocketHandler

        return {"/stream": WebSocketHandler}

    def routers(self) -> "Sequence[APIRouter]":
        """The route."""
        from gateway_plugins.streams.route import router

        return (router,)
