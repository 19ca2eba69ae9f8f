"""Uploads in, one result for each out: the path of a request between HTTP and the inference server."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing

from gateway.inference.backend import Backend
from gateway.inference.batching import Batcher
from gateway.inference.observer import Observers
from gateway.inference.request import DisconnectWatcher, RunningRequest
from gateway.inference.request_spec import RequestSpec
from gateway.inference.scope import Scope
from gateway.inference.steps import Step, charge, image_steps, load_model, processing
from gateway.inference.tools import Tools
from gateway.ingest.media_types import Uploads
from gateway.limits.account import Account
from gateway.limits.admission import Admission
from gateway.limits.caller import Caller


class InferenceService:
    """Classifies the uploads of many requests at once, with the steps that the service is made of."""

    def __init__(self, tools: Tools, observers: Observers | None = None, steps: Sequence[Step] = ()) -> None:
        self.tools = tools
        self.observers = observers or Observers()
        self._batcher = Batcher(tools, self.observers)
        loading = () if tools.backend.loader is None else (load_model,)
        self._process = processing(image_steps((charge,), (*loading, *steps)))

    @property
    def backend(self) -> Backend:
        """The inference server."""
        return self.tools.backend

    @property
    def admission(self) -> Admission:
        """What admits images."""
        return self.tools.admission

    async def start(self) -> None:
        """Start the observers."""
        await self.observers.start(self.tools)

    @asynccontextmanager
    async def classify(
        self,
        uploads: Uploads,
        spec: RequestSpec,
        disconnected: DisconnectWatcher | None = None,
        account: Account | None = None,
    ) -> AsyncIterator[RunningRequest]:
        """Classify in the `async with` block: iterate over one result for each upload, in the order of completion.

        An exception of `uploads` or `disconnected` ends the request and is raised by the iteration; an error of one
        file is in its result. Each file has its result within `spec.timeout_seconds` of its last byte. Decoding is
        charged to `account`, or to an account of the request's own.

        When the block ends, for whatever reason, all tasks of the request have ended and its permits are released,
        except those of images in calls, and other work in `tools.uncancelled`, that have not ended yet.
        """
        share = spec.charges.caller.share
        lowest = spec.expansion is not None and spec.expansion.gives_way
        with self.admission.permits(share, lowest=lowest) as permits, closing(self._batcher.queue(spec)) as queue:
            async with Scope() as scope:
                request = RunningRequest(self.tools, self.observers, self._process, queue, scope, permits, account)
                request.start(uploads, disconnected)
                yield request

    def stream_account(self, caller: Caller) -> Account:
        """The account that all frames of one stream share."""
        return self.tools.decoders.stream_account(caller)

    async def close(self) -> None:
        """End the observers, and wait a limited time for work that cannot be cancelled."""
        await self.observers.close()
        await self.tools.uncancelled.close()
