"""The sender of a request, and its limits."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.errors import GatewayError
    from gateway.limits.bounds import Bound

REFUSAL_SECONDS = 1.0
"""A request beyond its rate is refused after this pause, or a client that ignores Retry-After would keep the gateway
busy with refusals."""

Stages = Mapping[str, AbstractContextManager[None]]
"""The stages of a request, which measure the time inside; a caller's wait is in the stage `wait`."""


class Caller:
    """The sender of a request. This class adds no limits to the service's; subclasses of plug-ins may.

    Requests with the same object share its limits and its turns.
    """

    weight: float = 1.0
    """Its weight among the callers whose images wait for a permit."""
    images: "Bound | None" = None
    """Limit of its images in flight; None for the service's limit alone."""
    upload_bytes: "Bound | None" = None
    """Limit of the bytes of its waiting uploads; None for the service's limit alone."""

    def check_route(self, path: str, *, takes_images: bool) -> None:
        """Raise Forbidden if it may not use a route, by the route's template such as /models/{name}."""

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
"""The caller of a request without additional limits."""
