"""A response of JSON lines, which are sent while the request is still being classified."""

from pydantic_core import to_json
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api.body import Body
from gateway.api.request_context import RequestContext
from gateway.api.schemas import ModelOut, StreamedSummary, SummaryOut
from gateway.api.shapes import NDJSON, Native
from gateway.errors import GatewayError, problem_document
from gateway.inference.request_spec import RequestSpec
from gateway.inference.result import Result
from gateway.ingest.media_types import Uploads


class ResultLines(Response):
    """One line per file in the order of completion, then a line with the summary.

    A request that fails before its first line gets the error's status. Later the status has been sent already, so the
    error is a line.
    """

    media_type = NDJSON

    def __init__(self, context: RequestContext, spec: RequestSpec, body: Body, uploads: Uploads, shape: Native) -> None:
        super().__init__()
        self._context = context
        self._spec = spec
        self._request_body = body
        self._uploads = uploads
        self._shape = shape
        self._ok = self._failed = 0
        self._version: str | None = None

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
                async with self._context.service.classify(self._uploads, self._spec, watch) as results:
                    async for result in results:
                        await send_line(self._line(result))
            except GatewayError as error:
                if not started:
                    raise
                self._context.note(error)
                await send_line(to_json({"error": problem_document(error, self._context.request_id)}))
            await send_line(self._summary())
        except ClientDisconnect:
            self._context.note_disconnect()
            return
        await send({"type": "http.response.body", "body": b""})

    def _line(self, result: Result) -> bytes:
        self._failed += result.error is not None
        self._ok += result.error is None
        self._version = self._version or result.model_version
        model = {"name": self._spec.model_name, "version": result.model_version}
        return to_json({**self._shape.item(result, self._spec), "model": model}, inf_nan_mode="null")

    def _summary(self) -> bytes:
        summary = SummaryOut(ok=self._ok, failed=self._failed)
        model = ModelOut(name=self._spec.model_name, version=self._version)
        return StreamedSummary(model=model, summary=summary).model_dump_json().encode()
