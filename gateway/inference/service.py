"""Uploads in, one result for each out: the path of a request between HTTP and the inference server."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing

from gateway.inference.backend import Backend, ModelLoader
from gateway.inference.batching import Batcher, BatchLimits
from gateway.inference.prediction_log import PredictionLog
from gateway.inference.request import DisconnectWatcher, RunningRequest
from gateway.inference.request_spec import RequestSpec
from gateway.inference.scope import Scope
from gateway.inference.shadow import Shadows
from gateway.inference.uncancelled import Uncancelled
from gateway.ingest.decoders.pool import Decoders
from gateway.ingest.media_types import Uploads
from gateway.ingest.prepare import DecodePolicy
from gateway.limits.account import Account
from gateway.limits.admission import Admission
from gateway.limits.spare_capacity import SpareCapacity


class InferenceService:
    """Classifies the uploads of many requests at once.

    `shadow` maps models to their shadow versions and percentages; see gateway.inference.shadow. `log` gets each result.
    With a `loader`, images wait for their model before they wait for a permit.
    """

    def __init__(
        self,
        backend: Backend,
        admission: Admission,
        policy: DecodePolicy,
        batches: BatchLimits,
        decoders: Decoders,
        shadow: Mapping[str, Mapping[str, int]] | None = None,
        log: PredictionLog | None = None,
        loader: ModelLoader | None = None,
    ) -> None:
        self.backend = backend
        self.loader = loader
        self.admission = admission
        self.policy = policy
        self.batches = batches
        self.decoders = decoders
        self.log = log
        self.uncancelled = Uncancelled()
        """Work that may outlive its request: calls, and work that cannot be cancelled."""
        self.shadows = Shadows(backend, SpareCapacity(admission), self.uncancelled, shadow or {}, log)
        """Runs shadow versions on a share of the images."""
        self._batcher = Batcher(backend, batches, self.uncancelled, self.shadows, log)

    @asynccontextmanager
    async def classify(
        self,
        uploads: Uploads,
        query: RequestSpec,
        leaving: DisconnectWatcher | None = None,
        account: Account | None = None,
    ) -> AsyncIterator[RunningRequest]:
        """Classify in the `async with` block: iterate over one result for each upload, in the order of completion.

        An exception of `uploads` or `leaving` ends the request and is raised by the iteration; an error of one file is
        in its result. Each file has its result within `query.timeout_seconds` of its last byte. Decoding is charged to
        `account`, or to an account of the request's own.

        When the block ends, for whatever reason, all tasks of the request have ended and its permits are released,
        except those of images in calls, and other work in `uncancelled`, that have not ended yet.
        """
        share = None if query.charges is None else query.charges.tenant.share
        permits_of_request = self.admission.permits(share, lowest=query.explanation is not None)
        with permits_of_request as permits, closing(self._batcher.queue(query)) as queue:
            async with Scope() as scope:
                request = RunningRequest(self, queue, scope, permits, account)
                request.start(uploads, leaving)
                yield request

    def stream_account(self) -> Account:
        """The account that all frames of one stream share."""
        return self.decoders.stream_account()

    async def close(self) -> None:
        """Cancel calls to shadow versions, and wait a limited time for work that cannot be cancelled."""
        await self.shadows.close()
        await self.uncancelled.close()
