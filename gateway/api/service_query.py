"""The specification of a request for the service, and the HTTP status of its results."""

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
    context: RequestContext,
    settings: Settings,
    *,
    model_name: str,
    version: str | None,
    timeout_seconds: float | None,
    selection: Selection | None,
    frames: Wanted | None = None,
    vectors: Vectors = Vectors.NONE,
) -> RequestSpec:
    """Create the specification of a request; without a version, the model's split selects one.

    Raises InvalidParameter if the timeout exceeds its limit.
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
        request_id=context.request_id,
        split=split,
        frames=frames,
        tally=context.tally,
    )


def status_of(results: Sequence[Result]) -> HTTPStatus:
    """200 if at least one file was classified; else the error's status for one file, 422 for several.

    Raises the first ServiceError if all files failed with one.
    """
    errors = [result.error for result in results if result.error is not None]
    if len(errors) < len(results):
        return HTTPStatus.OK
    faults = [error for error in errors if isinstance(error, ServiceError)]
    if len(faults) == len(errors):
        raise faults[0]
    return faults[0].status if faults else errors[0].status if len(errors) == 1 else ImageError.status
