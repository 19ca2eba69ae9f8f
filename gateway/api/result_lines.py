"""The native format as JSON lines."""

from pydantic_core import to_json

from gateway.api.body import Body
from gateway.api.lines import LinedResponse, SendLine
from gateway.api.request_context import RequestContext
from gateway.api.schemas import ModelOut, StreamedSummary, SummaryOut
from gateway.api.shapes import Native
from gateway.inference.ready_results import ReadyResults
from gateway.inference.request_spec import RequestSpec
from gateway.ingest.media_types import Uploads


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
