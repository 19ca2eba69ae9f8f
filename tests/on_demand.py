"""Applications whose decoders start with the first image to decode."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self
from unittest.mock import patch

from gateway.ingest.decoders.pool import Decoders


class DecodersOnDemand(Decoders):
    """Decoders without the process that is started in advance for the first image."""

    async def __aenter__(self) -> Self:
        return self


@contextmanager
def decoders_on_demand() -> Iterator[None]:
    """Most applications in tests decode nothing, and a decoder's start takes a fifth of a second of processor time."""
    with patch("gateway.app.Decoders", DecodersOnDemand):
        yield
