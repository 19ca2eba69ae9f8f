"""What every route that takes images does: the uploads through the service, and the results as an answer needs them."""

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
    """All results, in the order of their files.

    Raises AnswerTooLarge as soon as that is certain, Overloaded where there is no room for it, and ClientDisconnect
    when the client leaves.
    """
    service = state(request)["service"]
    collected = []
    async with service.classify(uploads, query, partial(wait_for_disconnect, request)) as results:
        async for result in results:
            size.add(result)
            await held.grow(held_bytes(result))
            collected.append(result)
    return sorted(collected, key=lambda result: result.index)
