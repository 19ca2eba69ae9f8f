"""Uploads in, one result for each out: the path of a request between HTTP and the inference server."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from gateway.inference.batching import Batcher
from gateway.inference.observer import Observers
from gateway.inference.ready_results import ReadyResults, running
from gateway.inference.request import DisconnectWatcher, Request, Step, Take
from gateway.inference.request_spec import RequestSpec
from gateway.inference.tools import Tools
from gateway.ingest.media_types import Uploads
from gateway.limits.account import Account


class InferenceService:
    """Classifies the uploads of many requests at once; each goes through `steps`, see gateway.predict.image_steps."""

    def __init__(self, tools: Tools, steps: Sequence[Step], observers: Observers | None = None) -> None:
        self.tools = tools
        self.backend = tools.backend
        self.admission = tools.admission
        self.observers = observers or Observers()
        self._batcher = Batcher(tools, self.observers)
        self._steps = tuple(steps)

    async def start(self) -> None:
        """Start the observers."""
        await self.observers.start(self.tools)

    async def run(
        self,
        uploads: Uploads,
        spec: RequestSpec,
        take: Take,
        disconnected: DisconnectWatcher | None = None,
        account: Account | None = None,
    ) -> None:
        """Classify uploads: `take` gets one result for each, in the order of completion.

        Raises an exception of `uploads`, `take` or `disconnected`, which ends the request; an error of one file is in
        its result. Each file has its result within `spec.timeout_seconds` of its last byte. Decoding is charged to
        `account`, or to an account of the request's own.

        At the end, for whatever reason, all tasks of the request have ended and its permits are released, except those
        of images in calls, and other work in `tools.uncancelled`, that have not ended yet.
        """
        done, keeps_files = self.observers.done, self.observers.keep_files
        request = Request(self.tools, done, self._steps, self._batcher, spec, take, account, keeps_files=keeps_files)
        try:
            await request.run(uploads, disconnected)
        finally:
            request.close()

    def classify(
        self,
        uploads: Uploads,
        spec: RequestSpec,
        disconnected: DisconnectWatcher | None = None,
        account: Account | None = None,
    ) -> AbstractAsyncContextManager[ReadyResults]:
        """As `run`, for a caller that iterates over the results while the uploads are read.

        The request ends with the `async with` block. The iteration raises what `run` raises.
        """
        return running(lambda uploads, take: self.run(uploads, spec, take, disconnected, account), uploads)

    async def close(self) -> None:
        """End the observers, and wait a limited time for work that cannot be cancelled."""
        await self.observers.close()
        await self.tools.uncancelled.close()
