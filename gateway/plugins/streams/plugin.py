"""WS /stream."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gateway.hooks import Plugin, WebSocketProtocolOf

if TYPE_CHECKING:
    from fastapi import APIRouter


class Streams(Plugin):
    """Frames of a video or a camera over a WebSocket."""

    metrics = "gateway.plugins.streams.metrics"
    errors = "gateway.plugins.streams.errors"

    def websockets(self) -> "Mapping[str, WebSocketProtocolOf]":
        """The protocol of a stream."""
        from gateway.plugins.streams.websockets import StreamProtocol

        return {"/stream": StreamProtocol}

    def routers(self) -> "Sequence[APIRouter]":
        """The route."""
        from gateway.plugins.streams.route import router

        return (router,)
