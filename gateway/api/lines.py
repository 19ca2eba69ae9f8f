"""A response of JSON lines, which are sent while the request is still being classified."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

from pydantic_core import to_json
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api.body import Body
from gateway.api.request_context import RequestContext
from gateway.api.schemas import ModelOut, StreamedSummary, SummaryOut
from gateway.api.shapes import NDJSON, Native
from gateway.errors import GatewayError, problem_document
from gateway.inference.ready_results import ReadyResults
from gateway.inference.request_spec import RequestSpec
from gateway.ingest.media_types import Uploads

SendLine = Callable[[bytes], Awaitable[None]]
"""Sends a line, and before the first one the status and the headers."""


class LinedResponse(Response, ABC):
    """JSON lines of a request's results.

    A request that fails before its first line gets the error's status. Later the status has been sent already, so the
    error is a line.
    """

    media_type = NDJSON

    def __init__(self, context: RequestContext, spec: RequestSpec, body: Body, uploads: Uploads) -> None:
        super().__init__()
        self.context = context
        self.spec = spec
        self._request_body = body
        self._uploads = uploads

    @abstractmethod
    async def write(self, results: ReadyResults, send_line: SendLine) -> None:
        """Send the lines of the results; raises the error that ends the request."""

    def last_line(self) -> bytes | None:
        """What follows the results, or the error that ended them."""
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # ASGI's signature
        """Send the lines while the body is still being read."""
        del self.headers["content-length"]
        started = False

        async def send_line(line: bytes) -> None:
            nonlocal started
            if not started:
                started = True
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": line + b"\n", "more_body": True})

        watch = self._request_body.wait_for_disconnect
        try:
            try:
                async with self.context.service.classify(self._uploads, self.spec, watch) as results:
                    await self.write(results, send_line)
            except GatewayError as error:
                if not started:
                    raise
                self.context.note(error)
                await send_line(to_json({"error": problem_document(error, self.context.request_id)}))
            if (line := self.last_line()) is not None:
                await send_line(line)
        except ClientDisconnect:
            self.context.note_disconnect()
            return
        await send({"type": "http.response.body", "body": b""})


class ResultLines(LinedResponse):
    """One line per file in the order of completion, then a line with the summary."""

    def __init__(self, context: RequestContext, spec: RequestSpec, body: Body, uploads: Uploads, shape: Native) -> None:
        super().__init__(context, spec, body, uploads)
        self._shape = shape
        self._ok = self._failed = 0
        self._version: str | None = None

    async def write(self, results: ReadyResults, send_line: SendLine) -> None:
        """Send a line for each result."""
        async for result in results:
            self._failed += result.error is not None
            self._ok += result.error is None
            self._version = self._version or result.model_version
            model = {"name": self.spec.model_name, "version": result.model_version}
            await send_line(to_json({**self._shape.item(result, self.spec), "model": model}, inf_nan_mode="null"))

    def last_line(self) -> bytes:
        """The summary."""
        summary = SummaryOut(ok=self._ok, failed=self._failed)
        model = ModelOut(name=self.spec.model_name, version=self._version)
        return StreamedSummary(model=model, summary=summary).model_dump_json().encode()
