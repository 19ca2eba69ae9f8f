"""The service: uploads of many requests in, one result for each out."""

from collections.abc import Sequence

from gateway.inference.batching import Batcher
from gateway.inference.request import DisconnectWatcher, ImageRequest, Observers, Step, Take, nothing
from gateway.inference.request_spec import RequestSpec
from gateway.inference.tools import CLOSING_SECONDS, Tools
from gateway.ingest.upload import Uploads
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
        `account`, or to a new one.

        At the end, all tasks of the request have ended and its permits are released. Exceptions are images in calls,
        and other work in `tools.uncancelled`, that have not ended yet.
        """
        request = self.request(spec, take, account)
        try:
            await request.run(uploads, disconnected)
        finally:
            request.close()

    def request(self, spec: RequestSpec, take: Take = nothing, account: Account | None = None) -> ImageRequest:
        """A request whose uploads are not read yet; the caller closes it."""
        return ImageRequest(self.tools, self.observers, self._steps, self._batcher, spec, take, account)

    async def close(self) -> None:
        """Wait a limited time for work that may outlive its request."""
        await self.tools.uncancelled.close(CLOSING_SECONDS)
