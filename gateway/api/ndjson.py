"""Results as JSON lines, each as soon as it is there."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api.disconnect import unless_client_leaves
from gateway.api.problems import note
from gateway.api.schemas import ModelOut, StreamedSummary, SummaryOut, streamed_result
from gateway.errors import GatewayError
from gateway.inference.query import Query, Result
from gateway.problem import members

NDJSON = "application/x-ndjson"


class ResultStream(Response):
    """One line for each file in the order in which they are ready, then a line with the summary.

    What ends the request early is told in a last line of its own, since the status has already been sent.
    """

    media_type = NDJSON

    def __init__(self, request: Request, query: Query, results: AsyncGenerator[Result, None]) -> None:
        super().__init__()
        self._request = request
        self._query = query
        self._results = results

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # ASGI's signature
        """Send the lines while the body is still being read."""
        del self.headers["content-length"]
        await unless_client_leaves(self._request, self._send(send))

    async def _send(self, send: Send) -> None:
        async def send_line(line: bytes) -> None:
            await send({"type": "http.response.body", "body": line + b"\n", "more_body": True})

        ok = failed = 0
        version: str | None = None
        async with aclosing(self._results) as results:
            try:
                # A request that fails before its first result still gets a status of its own.
                first = await anext(results)
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                async for result in _chain(first, results):
                    failed += result.error is not None
                    ok += result.error is None
                    version = version or result.model_version
                    await send_line(streamed_result(result, self._query.model_name).model_dump_json().encode())
            except GatewayError as error:
                if not (ok or failed):
                    raise
                note(self._request.state.event, error)
                await send_line(to_json({"error": members(error, self._request.state.request_id)}))
        summary = SummaryOut(ok=ok, failed=failed)
        tail = StreamedSummary(model=ModelOut(name=self._query.model_name, version=version), summary=summary)
        await send_line(tail.model_dump_json().encode())
        await send({"type": "http.response.body", "body": b""})


async def _chain(first: Result, rest: AsyncGenerator[Result, None]) -> AsyncIterator[Result]:
    yield first
    async for result in rest:
        yield result
