"""Shared by all routes that take images: sends uploads through the service and collects the results."""

from functools import partial

from starlette.requests import Request

from gateway.api.answers import AnswerSize, held_bytes
from gateway.api.disconnect import wait_for_disconnect
from gateway.api.state import state
from gateway.inference.request_spec import RequestSpec, Result
from gateway.ingest.media_types import Uploads
from gateway.limits.response_buffer import HeldResponse


async def classify(
    request: Request, uploads: Uploads, query: RequestSpec, size: AnswerSize, held: HeldResponse
) -> list[Result]:
    """Classify all uploads; returns the results in the order of their files.

    Raises AnswerTooLarge as soon as the limit is exceeded, Overloaded if the response buffer is full, and
    ClientDisconnect if the client disconnects.
    """
    service = state(request)["service"]
    collected = []
    async with service.classify(uploads, query, partial(wait_for_disconnect, request)) as results:
        async for result in results:
            size.add(result)
            await held.grow(held_bytes(result))
            collected.append(result)
    return sorted(collected, key=lambda result: result.index)
