"""Results as JSON lines, each sent as soon as it is ready."""

from functools import partial

from pydantic_core import to_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api.disconnect import note_disconnect, wait_for_disconnect
from gateway.api.problems import note
from gateway.api.request_context import request_context
from gateway.api.schemas import ModelOut, StreamedSummary, SummaryOut
from gateway.api.shapes import Native
from gateway.api.state import state
from gateway.errors import GatewayError
from gateway.inference.request import RunningRequest
from gateway.inference.request_spec import RequestSpec
from gateway.ingest.media_types import Uploads
from gateway.problem import members

NDJSON = "application/x-ndjson"


class ResultStream(Response):
    """One line per file in the order of completion, then a line with the summary.

    An error that ends the request early is reported in a line before the summary, since the status is already sent.
    """

    media_type = NDJSON

    def __init__(self, request: Request, query: RequestSpec, uploads: Uploads, shape: Native) -> None:
        super().__init__()
        self._request = request
        self._query = query
        self._uploads = uploads
        self._shape = shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # ASGI's signature
        """Send the lines while the body is still being read."""
        del self.headers["content-length"]
        service = state(self._request)["service"]
        try:
            async with service.classify(
                self._uploads, self._query, partial(wait_for_disconnect, self._request)
            ) as results:
                await self._send(results, send)
        except ClientDisconnect:
            note_disconnect(request_context(self._request))

    async def _send(self, results: RunningRequest, send: Send) -> None:
        async def send_line(line: bytes) -> None:
            await send({"type": "http.response.body", "body": line + b"\n", "more_body": True})

        ok = failed = 0
        version: str | None = None
        try:
            async for result in results:
                if not (ok or failed):  # a request that fails before its first result gets an error status
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                failed += result.error is not None
                ok += result.error is None
                version = version or result.model_version
                model = {"name": self._query.model_name, "version": result.model_version}
                await send_line(to_json({**self._shape.item(result, self._query), "model": model}, inf_nan_mode="null"))
        except GatewayError as error:
            if not (ok or failed):
                raise
            current = request_context(self._request)
            note(current.event, error)
            await send_line(to_json({"error": members(error, current.request_id)}))
        summary = SummaryOut(ok=ok, failed=failed)
        tail = StreamedSummary(model=ModelOut(name=self._query.model_name, version=version), summary=summary)
        await send_line(tail.model_dump_json().encode())
        await send({"type": "http.response.body", "body": b""})
