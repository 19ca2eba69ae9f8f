"""POST /embed."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.hooks import Plugin

if TYPE_CHECKING:
    from fastapi import APIRouter


class Embed(Plugin):
    """Embeddings of images."""

    def routers(self) -> "Sequence[APIRouter]":
        """The route."""
        from gateway.plugins.embed.route import router

        return (router,)
