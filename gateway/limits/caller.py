"""Who sends a request, and what it may take of the service."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.errors import GatewayError
    from gateway.limits.admission import FairShare
    from gateway.limits.pools import Bound

REFUSAL_SECONDS = 1.0
"""A request beyond its rate is refused after this pause, or a client that ignores Retry-After would keep the gateway
busy with refusals."""

Stages = Mapping[str, AbstractContextManager[None]]
"""The stages of a request, which measure the time inside; a caller's wait is in the stage `wait`."""


class Caller:
    """Who sends a request. This class limits nothing beyond what the service limits; those of plug-ins may."""

    share: "FairShare | None" = None
    """Its part of the admission; None for the part of all that have none of their own."""
    upload_bytes: "Bound | None" = None
    """The bytes of its uploads that may wait; None for no limit but that of the service."""

    has_rate: bool = True
    """Whether `charge` may wait or refuse. If so, it is called before a further image of a file is decoded."""

    def check_route(self, path: str, *, takes_images: bool) -> None:
        """Raise Forbidden if it may not use a route, by its template such as /models/{name}, and what it takes."""

    def check_model(self, name: str) -> None:
        """Raise Forbidden if it may not use a model."""

    def allows_model(self, name: str) -> bool:
        """Whether it may use a model."""
        del name
        return True

    async def charge(self, most_seconds: float, stages: Stages) -> None:
        """Charge an image; may wait for up to `most_seconds`. Raises RateLimited."""

    def count(self, error: "GatewayError | None") -> None:
        """Count the result of an image."""

    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """Headers of responses to requests with images."""
        return ()


ANYONE = Caller()
"""The caller of a request without limits of its own."""
ANYONE.has_rate = False
