"""One Triton: its models by the names and versions that clients use, for each of which an ensemble answers."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tritonclient.grpc.service_pb2 import RepositoryIndexResponse
from tritonclient.utils import InferenceServerException

from gateway.errors import (
    ContractBroken,
    GatewayError,
    InferenceFailed,
    LoadFailed,
    ModelNotFound,
    ModelUnavailable,
    RequestError,
    UndecodableImage,
    no_features,
)
from gateway.inference.backend import Call, CallLimits, Embeddings, ModelInfo
from gateway.inference.result import Predictions, Row
from gateway.ingest.resizing import Resize
from gateway.timing import TimeSlice
from gateway.triton.client import ALL_CLASSES, NOT_LOADED, TritonEndpoint, pause_seconds
from gateway.triton.codecs import Codecs
from gateway.triton.configs import steps
from gateway.triton.contract import SEQUENCE_PREDICTION, pinned, pinned_versions
from gateway.triton.descriptions import describe, read_labels
from gateway.triton.ensemble import Ensemble, read_ensemble
from gateway.triton.health.state import READY, HealthState
from gateway.triton.wire import Codec

if TYPE_CHECKING:
    from gateway.triton.health.checker import HealthChecker

SWITCH_PAUSES_SECONDS = (0.0, 0.05)
"""Pauses before a retry of a model that answered before and is not found."""
REMEMBERED_SECONDS, LABELS_REMEMBERED_SECONDS = 10.0, 60.0
NOT_SERVED = "Triton has not loaded the model; GET /health/ready shows the reason to clients with a key."
T = TypeVar("T")


class Remembered(Generic[T]):
    """Values that `read` has read from Triton by name and version, each for `seconds`.

    After that, another model may be loaded under the same name. Callers that need the same value at the same time share
    one read: a thousand reads would cost seconds and 150 MB.
    """

    def __init__(self, read: Callable[[str, str], Awaitable[T]], seconds: float) -> None:
        self._read, self._seconds = read, seconds
        self._values: dict[tuple[str, str], tuple[float, T]] = {}
        self._reads: dict[tuple[str, str], asyncio.Future[T]] = {}

    async def get(self, name: str, version: str) -> T:
        """The value of a name and a version; it is read if it is not known, and an error is raised for all."""
        key = name, version
        known = self._values.get(key)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        if (reading := self._reads.get(key)) is None:
            reading = self._reads[key] = asyncio.ensure_future(self._read(name, version))
            reading.add_done_callback(partial(self._ended, key))
        return await asyncio.shield(reading)  # a caller that leaves does not end the read of the others

    def _ended(self, key: tuple[str, str], reading: "asyncio.Future[T]") -> None:
        failed = reading.cancelled() or reading.exception() is not None
        if self._reads.get(key) is reading:  # else it was forgotten meanwhile
            del self._reads[key]
            if not failed:
                self._values[key] = time.monotonic() + self._seconds, reading.result()

    def last(self, name: str, version: str) -> T | None:
        """The value that was last read, however old; None before the first time."""
        known = self._values.get((name, version))
        return known[1] if known else None

    def forget(self, name: str) -> None:
        """Read the values of a name again, also if they are being read now."""
        self._values = {key: known for key, known in self._values.items() if key[0] != name}
        self._reads = {key: reading for key, reading in self._reads.items() if key[0] != name}


@lru_cache(1_024)
def candidates(model_name: str, model_version: str, last: str = "") -> Sequence[tuple[str, str]]:
    """The ensembles, each with its own version, that may answer for a model's version; `last` answered last."""
    if not model_version:
        return ((model_name, ""),)
    both = ((model_name, model_version), (pinned(model_name, model_version), ""))
    return both if last in {"", model_name} else both[::-1]


class Replica:
    """One Triton in use: calls, descriptions and loading of its models.

    Every method raises errors of gateway.errors only. The results of requests are recorded in `health`; a model that
    should be served and is not gets ModelUnavailable.
    """

    def __init__(
        self,
        endpoint: TritonEndpoint,
        health: HealthState,
        checker: "HealthChecker",
        codecs: Codecs | None = None,
    ) -> None:
        self._codecs = codecs = codecs or Codecs()
        self.address = endpoint.address
        self.endpoint, self.health, self.checker = endpoint, health, checker
        self.images = 0
        """Images that this gateway process has there in flight."""
        self.sequences = 0
        """Sequences of this gateway process whose state this Triton keeps."""
        self.task: asyncio.Task[None] | None = None
        """The health checker's."""
        self._answering: dict[tuple[str, str], Ensemble] = {}
        """The last ensemble that answered for a model and a version."""
        self._ensembles = Remembered(partial(read_ensemble, endpoint, codecs), REMEMBERED_SECONDS)
        self._labels = Remembered(partial(read_labels, endpoint, codecs), LABELS_REMEMBERED_SECONDS)
        self._sequence_models = Remembered(self._read_sequence_model, REMEMBERED_SECONDS)

    async def infer(self, call: Call) -> Sequence[Row]:
        """Classify a batch; see Backend.infer. The first ensemble answers that exists for the model and version."""
        key = call.model_name, call.model_version
        # The version in use may have been replaced after Triton had chosen it for the call.
        last = self._answering.get(key)
        pauses = SWITCH_PAUSES_SECONDS if last else ()
        for pause in (None, *pauses):
            if pause is not None:
                await asyncio.sleep(pause)
            missing: GatewayError | None = None
            for ensemble, version in candidates(*key, last.name if last else ""):
                try:
                    return await self._send(call, ensemble, version)
                except ModelNotFound as exc:
                    missing = missing or exc
                except ModelUnavailable as exc:
                    if ensemble == call.model_name or type(exc) is not ModelUnavailable:
                        raise
                    missing = exc  # a version's own ensemble may have been removed, and the model's one answers for it
        self._answering.pop(key, None)
        raise self._not_served(*key, missing)

    async def _send(self, call: Call, name: str, version: str) -> Sequence[Row]:
        """Send a call to an ensemble, in parts if it has too many images, and record its outcome in `health`."""
        sent_at, selection = time.monotonic(), call.selection
        most: int | None = None
        class_count: int | None = None
        rows: Sequence[Row]
        try:
            ensemble = await self._ensembles.get(name, "")
            codec = ensemble.codec
            multi_label = codec.multi_label
            if selection is not None:
                most = selection.class_count(multi_label=multi_label)
                class_count = ALL_CLASSES if most is None else max(most, call.least_classes)
            embeddings = call.embeddings is not Embeddings.NONE and codec.embedding_size > 0
            if call.embeddings is Embeddings.NEEDED and not embeddings:
                raise no_features(call.model_name)
            sent = call if name == call.model_name else replace(call, model_name=name, model_version=version)
            infer = partial(self.endpoint.infer, class_count=class_count, embeddings=embeddings, codec=codec)
            images, most_images = len(call.images), codec.most_images
            if images == 1 and not codec.reports_images:
                rows = [await _row_of_lone_image(sent, codec, infer)]
            elif images <= most_images:
                rows = await infer(sent)
            else:  # the limits of the ensemble were not known when the call was formed, or have changed
                starts = range(0, images, most_images)
                parts = [sent.of(range(start, min(start + most_images, images))) for start in starts]
                rows = [row for part in parts for row in await infer(part)]
        except RequestError:
            raise
        except GatewayError as exc:
            if not call.best_effort:
                self.health.suspect(name, exc, sent_at)
            if isinstance(exc, InferenceFailed) and self.health.is_broken(name):
                raise ContractBroken(f"The model {name!r} does not fit the gateway's contract.") from exc
            raise
        self._answering[call.model_name, call.model_version] = ensemble  # only now: clients choose the version
        if not call.best_effort:
            self.health.answered(name, sent_at)
        for row in rows:
            row.multi_label, row.drift_reference = multi_label, ensemble.drift_reference
        if selection is not None and not (
            # The best classes that Triton returns are the selection, and no observer needs others.
            most == class_count
            and not call.least_classes
            and selection.threshold is None
            and not selection.labels
            and (selection.top_k is not None or not multi_label)
        ):
            await _select(rows, call, most, multi_label=multi_label)
        return rows

    def may_cache(self, model_name: str, model_version: str) -> bool:
        """Whether Triton may answer for a model from its response cache; True if that is not known."""
        ensemble = self._answering.get((model_name, model_version)) or self._last(model_name, model_version)
        return ensemble is None or ensemble.cached

    def call_limits(self, model_name: str, model_version: str, max_images: int) -> CallLimits | None:
        """How many calls of up to `max_images` keep this Triton busy; None before the first call."""
        ensemble = self._answering.get((model_name, model_version)) or self._last(model_name, model_version)
        return None if ensemble is None else ensemble.limits(max_images)

    def _last(self, model_name: str, model_version: str) -> Ensemble | None:
        """An ensemble that may answer for a model and a version, as it was last read."""
        known = (self._ensembles.last(name, "") for name, _ in candidates(model_name, model_version))
        return next((ensemble for ensemble in known if ensemble is not None), None)

    async def _first(self, model_name: str, model_version: str, read: Callable[[str, str], Awaitable[T]]) -> T:
        """Call `read` for the first of these ensembles that exists; raises the last ModelNotFound."""
        missing: ModelNotFound | None = None
        last = self._answering.get((model_name, model_version))
        for ensemble, version in candidates(model_name, model_version, last.name if last else ""):
            try:
                return await read(ensemble, version)
            except ModelNotFound as exc:
                missing = exc
        raise self._not_served(model_name, model_version, missing)

    def _not_served(self, model_name: str, model_version: str, error: GatewayError | None) -> GatewayError:
        """The error of a model that Triton does not find: ModelUnavailable if it should be served here."""
        error = error or ModelNotFound()
        if self.health.lacks(model_name, model_version):
            unavailable = ModelUnavailable(NOT_LOADED)
            unavailable.__cause__ = error.__cause__
            return unavailable
        return error

    async def describe_all(self, only: str | None = None) -> list[ModelInfo]:
        """Every model with a version that is ready, and those that should be, by name; or only one of them."""
        index = await self.endpoint.index()
        names = _names(index)
        wanted = [name for name in sorted(names) if only in {None, name}]
        describe_one = partial(describe, self.endpoint, self._codecs, self._labels.get, index)
        found = await asyncio.gather(*map(describe_one, wanted))
        described = {info.name: info for info in found if info is not None}
        for name in filter(self.health.lacks, self.health.models):
            if only in {None, name} and not any(name in pinned_versions(other, [name]) for other in names):
                described.setdefault(name, ModelInfo(name, (), ready=False, classes=0, reason=NOT_SERVED))
        return [described[name] for name in sorted(described)]

    async def describe(self, name: str) -> ModelInfo | None:
        """One of `describe_all`; None if there is no such model. Makes no calls for other models."""
        return next(iter(await self.describe_all(name)), None)

    async def labels(self, model_name: str, model_version: str) -> tuple[str, ...]:
        """The labels of one version's classes, by class id; see Backend.labels."""
        return await self._first(model_name, model_version, self._labels.get)

    async def resize(self, model_name: str, model_version: str) -> Resize | None:
        """How one version's images are resized, by its preprocessor's parameters; see Backend.resize."""
        return (await self._first(model_name, model_version, self._ensembles.get)).resize

    async def sequence_model(self, model_name: str, model_version: str) -> str:
        """The stateful model for the streams of one version of a model; raises ModelNotFound if there is none."""
        return await self._sequence_models.get(model_name, model_version)

    async def load_sequence_model(self, model_name: str, model_version: str) -> str:
        """Load the stateful model for the streams of a model; returns its name, "" if the repository has none."""
        name = (await self._first(model_name, model_version, self._ensembles.get)).sequence_model
        try:
            await self.load(name)
        except ModelNotFound:
            return ""
        return name

    async def _read_sequence_model(self, model_name: str, model_version: str) -> str:
        name = (await self._first(model_name, model_version, self._ensembles.get)).sequence_model
        try:
            given = {output.name for output in (await self.endpoint.config(name)).output}
        except ModelNotFound as exc:
            if self.health.lacks(name):
                raise ModelUnavailable(NOT_LOADED) from exc
            raise ModelNotFound(
                f"Triton has no stateful model {name!r} for the streams of {model_name!r}: add it to the model "
                f"repository, or request 'smoothing=none'."
            ) from exc
        if SEQUENCE_PREDICTION not in given:
            raise ContractBroken(f"The model {name!r} gives no {SEQUENCE_PREDICTION}, and so cannot follow a stream.")
        return name

    async def load(self, name: str) -> None:
        """Load a model with all its versions, or reload it if its files have changed.

        The old instances answer meanwhile. Raises ModelNotFound, or LoadFailed with Triton's reason.
        """
        index = await self._index_with(name)
        # The model last: its record may give requests to each of the versions.
        models = (*pinned_versions(name, _names(index)), name)
        try:
            # Triton loads the steps with the ensemble, including changed files.
            pause = 0.0
            for model in models:
                await asyncio.sleep(pause)
                began = time.monotonic()
                await self.endpoint.load(model)
                pause = pause_seconds(time.monotonic() - began)
        except GatewayError as exc:
            raise LoadFailed(f"Triton cannot load {name!r}: {_reason(exc)}") from exc
        self._forget(name)

    async def unload(self, name: str) -> set[str]:
        """Unload a model, its versions, and the steps that no other model needs; returns its ensembles.

        Requests in progress are finished first. Raises ModelNotFound, or LoadFailed with Triton's reason.
        """
        index = await self._index_with(name)
        own = {name, *pinned_versions(name, _names(index))}
        try:
            own_steps = steps(await self.endpoint.config(name))
            others = [model.name for model in index.models if model.state == READY and model.name not in own]
            needed = {step for other in others for step in steps(await self.endpoint.config(other))}
            for model in (*own, *(step for step in own_steps if step not in needed)):
                await self.endpoint.unload(model)
        except (ModelNotFound, ModelUnavailable):
            return own  # it is not loaded
        except GatewayError as exc:
            raise LoadFailed(f"Triton cannot unload {name!r}: {_reason(exc)}") from exc
        self._forget(name)
        return own

    async def _index_with(self, name: str) -> RepositoryIndexResponse:
        index = await self.endpoint.index()
        if name not in _names(index):
            raise ModelNotFound(f"There is no model {name!r} in Triton's repository.")
        return index

    def _forget(self, name: str) -> None:
        remembered: tuple[Remembered[Any], ...] = (
            self._ensembles,
            self._labels,
            self._sequence_models,
        )
        for each in remembered:
            each.forget(name)


async def _row_of_lone_image(call: Call, codec: Codec, infer: Callable[[Call], Awaitable[Sequence[Row]]]) -> Row:
    """Send the only image of a call to a model that does not say which images it could not decode.

    If it fails and a probe does not, it is sent once more, since Triton may have run it together with the image of
    another client. If it fails again, it cannot be decoded.
    """
    try:
        (row,) = await infer(call)
    except InferenceFailed as failure:
        try:
            (proof,) = await infer(replace(call, images=[codec.probe()], signatures=()))
        except GatewayError:
            raise failure from failure.__cause__
        try:
            (row,) = await infer(call)
        except InferenceFailed:
            return Row(error=UndecodableImage(), model_version=proof.model_version)
    return row


async def _select(rows: Sequence[Row], call: Call, most: int | None, *, multi_label: bool) -> None:
    """Leave each row the selected classes, out of the `most` best ones."""
    selection = call.selection
    assert selection is not None
    time_slice = TimeSlice()
    for row in rows:
        if row is not rows[0]:
            await time_slice.pause_if_over()
        known = Predictions.of(row.predictions)
        if row.error is None:
            row.predictions = selection.apply(known[:most], multi_label=multi_label)
        if call.least_classes:
            row.best = known[: call.least_classes]


def _names(index: RepositoryIndexResponse) -> set[str]:
    return {model.name for model in index.models}


def _reason(error: GatewayError) -> str:
    """Triton's message, without the traceback of a Python model."""
    words = error.__cause__.message() if isinstance(error.__cause__, InferenceServerException) else error.message
    return words.partition("\n\nAt:")[0].strip()
