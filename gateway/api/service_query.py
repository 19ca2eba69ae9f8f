"""What a request asks of the service, and how its answers become a status."""

from collections.abc import Sequence
from http import HTTPStatus

from starlette.requests import Request

from gateway.api.request_context import RequestContext
from gateway.errors import ImageError, ServiceError
from gateway.inference.backend import Vectors
from gateway.inference.request_spec import RequestSpec, Result, timeout_within
from gateway.inference.selection import Selection
from gateway.inference.split import version_of
from gateway.ingest.frames import Wanted
from gateway.settings import Settings


def make_query(
    request: Request,
    exchange: RequestContext,
    settings: Settings,
    *,
    model_name: str,
    version: str | None,
    timeout_seconds: float | None,
    selection: Selection | None,
    frames: Wanted | None = None,
    vectors: Vectors = Vectors.NONE,
) -> RequestSpec:
    """The query of a request, whose version is the one that it names, or else its share of the model's split.

    Raises InvalidParameter where the timeout is beyond its limit.
    """
    seconds = timeout_within(
        timeout_seconds, default=settings.default_timeout_seconds, most=settings.max_timeout_seconds
    )
    client = request.headers.get(settings.model_split_header, "")
    model_version, split = version_of(settings.model_split, model_name, version, client)
    return RequestSpec(
        model_name=model_name,
        model_version=model_version,
        selection=selection,
        vectors=vectors,
        timeout_seconds=seconds,
        request_id=exchange.request_id,
        split=split,
        frames=frames,
        tally=exchange.tally,
    )


def status_of(results: Sequence[Result]) -> HTTPStatus:
    """200 when at least one file was classified; else the one file's own status, 422 for several.

    Raises the ServiceError that left every file without an answer.
    """
    errors = [result.error for result in results if result.error is not None]
    if len(errors) < len(results):
        return HTTPStatus.OK
    faults = [error for error in errors if isinstance(error, ServiceError)]
    if len(faults) == len(errors):
        raise faults[0]
    return faults[0].status if faults else errors[0].status if len(errors) == 1 else ImageError.status
