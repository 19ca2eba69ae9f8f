"""GET / and below: pages for people."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.hooks import Plugin

if TYPE_CHECKING:
    from fastapi import APIRouter


class Page(Plugin):
    """The web page, the OpenAPI page, and the client's wheel."""

    def routers(self) -> "Sequence[APIRouter]":
        """The pages, and their assets."""
        from gateway.plugins.page import client_wheel, page

        return page.router, client_wheel.router
