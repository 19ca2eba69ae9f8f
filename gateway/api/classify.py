"""What every route that takes images does: the uploads through the service, and the results as an answer needs them."""

from functools import partial

from starlette.requests import Request

from gateway.api.disconnect import leaving
from gateway.api.state import state
from gateway.inference.query import Query, Result
from gateway.inference.request import Uploads


async def classify(request: Request, uploads: Uploads, query: Query) -> list[Result]:
    """All results, in the order of their files; raises ClientDisconnect when the client leaves."""
    service = state(request)["service"]
    async with service.classify(uploads, query, partial(leaving, request)) as results:
        return sorted([result async for result in results], key=lambda result: result.index)
