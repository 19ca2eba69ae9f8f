"""The models of one Triton by the names and versions that clients use, each an ensemble that keeps the contract."""

import asyncio
import difflib
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, TypeVar

from tritonclient.grpc.service_pb2 import RepositoryIndexResponse
from tritonclient.utils import InferenceServerException

from gateway.errors import (
    ContractBroken,
    GatewayError,
    InferenceFailed,
    LoadFailed,
    ModelNotFound,
    ModelUnavailable,
    no_features,
)
from gateway.inference.backend import Call, CallLimits, Embeddings, InferResult, ModelInfo, Row
from gateway.inference.prediction import NO_PREDICTIONS, Predictions
from gateway.ingest.resizing import Resize
from gateway.time_slices import TimeSlice
from gateway.triton.codec import Codecs
from gateway.triton.contract import (
    MODEL_PARAMETER,
    SEQUENCE_MODEL,
    SEQUENCE_PARAMETER,
    SEQUENCE_PREDICTION,
    pinned,
    pinned_versions,
)
from gateway.triton.descriptions import (
    ALL_CLASSES,
    READY,
    EnsembleTraits,
    describe,
    read_labels,
    read_resize,
    read_traits,
)
from gateway.triton.endpoint import TritonEndpoint
from gateway.triton.error_table import NOT_LOADED
from gateway.triton.health.state import HealthState
from gateway.triton.load_pauses import pause_seconds
from gateway.triton.model_config import parameters, steps
from gateway.triton.sender import Sender

SWITCH_PAUSES_SECONDS = (0.0, 0.05)
"""Pauses before a retry of a model that answered before and is not found."""
REMEMBERED_SECONDS, LABELS_REMEMBERED_SECONDS = 10.0, 60.0
NOT_SERVED = "Triton has not loaded the model; GET /health/ready shows the reason to clients with a key."
T = TypeVar("T")


class Remembered(Generic[T]):
    """Values that were read from Triton, each for `seconds`: another model may be loaded under the same name.

    Callers that need the same value at the same time share one read: a thousand reads would cost seconds and 150 MB.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._values: dict[tuple[str, str], tuple[float, T]] = {}
        self._reads: dict[tuple[str, str], asyncio.Future[Exception | None]] = {}

    async def get(self, key: tuple[str, str], read: Callable[[str, str], Awaitable[T]]) -> T:
        """The value of a name and a version; `read` is called if it is not known, and its error raised for all."""
        while (known := self._values.get(key)) is None or time.monotonic() >= known[0]:
            reading = self._reads.get(key)
            if reading is None:
                return await self._read(key, read)
            if (error := await asyncio.shield(reading)) is not None:
                raise error.with_traceback(None)  # else it would grow with each request that raises it
        return known[1]

    async def _read(self, key: tuple[str, str], read: Callable[[str, str], Awaitable[T]]) -> T:
        reading = self._reads[key] = asyncio.get_running_loop().create_future()
        error: Exception | None = None
        try:
            value = await read(*key)
        except Exception as exc:
            error = exc
            raise
        else:
            if self._reads.get(key) is reading:  # else it was forgotten meanwhile
                self._values[key] = (time.monotonic() + self._seconds, value)
            return value
        finally:
            if self._reads.get(key) is reading:
                del self._reads[key]
            reading.set_result(error)  # None after a cancellation: the next caller reads
            del error

    def last(self, key: tuple[str, str]) -> T | None:
        """The value that was last read, however old; None before the first time."""
        known = self._values.get(key)
        return known[1] if known else None

    def until(self, key: tuple[str, str]) -> float:
        """When a value that `get` has returned is read again, by time.monotonic."""
        known = self._values.get(key)
        return known[0] if known else 0.0

    def forget(self, name: str) -> None:
        """Read the values of a name again, also those that are being read now."""
        self._values = {key: known for key, known in self._values.items() if key[0] != name}
        self._reads = {key: reading for key, reading in self._reads.items() if key[0] != name}


@dataclass(slots=True)
class Target:
    """The ensemble that answers for a model and a version, with what is fixed for its calls."""

    ensemble: str
    version: str
    """Its own version in Triton; "" for the newest."""
    traits: EnsembleTraits
    until: float
    """When the traits are read again, by time.monotonic."""
    most_images: int = field(init=False)
    """Images that may be sent in one request as they are; Sender divides the calls that have more."""

    def __post_init__(self) -> None:
        codec = self.traits.codec
        self.most_images = (codec.most_images if codec.mixes_lengths else 1) if codec.reports_images else 0


class Models:
    """What one Triton serves; every method raises errors of gateway.errors only.

    The results of requests are recorded in `health`; a model that should be served and is not gets ModelUnavailable.
    """

    def __init__(
        self, endpoint: TritonEndpoint, health: HealthState | None = None, codecs: Codecs | None = None
    ) -> None:
        self._endpoint = endpoint
        self._codecs = codecs or Codecs()
        self._health = health
        self._traits: Remembered[EnsembleTraits] = Remembered(REMEMBERED_SECONDS)
        self._resizes: Remembered[Resize | None] = Remembered(REMEMBERED_SECONDS)
        self._sequence_models: Remembered[str] = Remembered(REMEMBERED_SECONDS)
        self._labels: Remembered[tuple[str, ...]] = Remembered(LABELS_REMEMBERED_SECONDS)
        self._targets: dict[tuple[str, str], Target] = {}
        """What last answered for a model and a version."""

    async def infer(self, call: Call) -> InferResult:
        """Classify a batch; see Backend.infer."""
        target = self._targets.get((call.model_name, call.model_version))
        if target is None:
            return await self._search(call)
        try:
            if time.monotonic() < target.until:
                return await self._send(call, target)
            return await self._search(call)
        except ModelNotFound:
            # The version in use may have been replaced after Triton had chosen it for the call.
            for seconds in SWITCH_PAUSES_SECONDS:
                await asyncio.sleep(seconds)
                with suppress(ModelNotFound):
                    return await self._search(call)
            raise

    async def _search(self, call: Call) -> InferResult:
        """Send a call to the first ensemble that exists, of those that may answer for its model and version."""
        key = call.model_name, call.model_version
        missing: ModelNotFound | None = None
        for ensemble, version in self._ensembles(*key):
            sent_at = time.monotonic()
            try:
                traits = await self._traits.get((ensemble, ""), self._read_traits)
            except ModelNotFound as exc:
                missing = exc
                continue
            except GatewayError as exc:
                self._record(exc, call, ensemble, sent_at)
                raise
            target = Target(ensemble, version, traits, self._traits.until((ensemble, "")))
            try:
                result = await self._send(call, target)
            except ModelNotFound as exc:
                missing = exc
            else:
                self._targets[key] = target  # only now: clients choose the version
                return result
        self._targets.pop(key, None)
        raise self._not_served(*key, missing)

    async def _send(self, call: Call, target: "Target") -> InferResult:
        """Send a call to an ensemble, and record in `health` what becomes of it."""
        ensemble, traits = target.ensemble, target.traits
        codec, selection = traits.codec, call.selection
        multi_label = codec.multi_label
        most: int | None = None
        class_count: int | None = None
        if selection is not None:
            most = selection.class_count(multi_label=multi_label)
            class_count = ALL_CLASSES if most is None else max(most, call.least_classes)
        embeddings = call.embeddings is not Embeddings.NONE and _wants_embeddings(call, traits)
        if ensemble != call.model_name:
            call = replace(call, model_name=ensemble, model_version=target.version)
        sent_at = time.monotonic()
        try:
            if len(call.batch.images) <= target.most_images:
                result = await self._endpoint.infer(call, class_count=class_count, embeddings=embeddings, codec=codec)
            else:
                result = await Sender(self._endpoint, codec, class_count, embeddings).send(call)
        except ModelNotFound:
            raise
        except GatewayError as exc:
            self._record(exc, call, ensemble, sent_at)
            raise
        if self._health is not None and not call.best_effort:
            self._health.answered(ensemble, sent_at)
        result.multi_label, result.drift_reference = multi_label, traits.drift_reference
        if selection is not None and (most != class_count or not selection.is_count(multi_label=multi_label)):
            result.rows = await _select(result.rows, call, most, multi_label=multi_label)
        return result

    def _record(self, error: GatewayError, call: Call, ensemble: str, sent_at: float) -> None:
        """Record a failed call; raises ContractBroken if the last probe has found that to be the cause."""
        health = self._health
        if health is None:
            return
        if not call.best_effort:
            health.suspect(ensemble, error, sent_at)
        if isinstance(error, InferenceFailed) and health.is_broken(ensemble):
            raise ContractBroken(f"The model {ensemble!r} does not fit the gateway's contract.") from error

    def may_cache(self, model_name: str, model_version: str) -> bool:
        """Whether Triton may answer for a model from its response cache; True if that is not known."""
        target = self._targets.get((model_name, model_version))
        traits = self._last_traits(model_name, model_version) if target is None else target.traits
        return traits is None or traits.cached

    def call_limits(self, model_name: str, model_version: str, max_images: int) -> CallLimits | None:
        """How many calls of up to `max_images` keep this Triton busy; None before the first call."""
        target = self._targets.get((model_name, model_version))
        traits = self._last_traits(model_name, model_version) if target is None else target.traits
        if traits is None:
            return None
        codec, workload = traits.codec, traits.workload
        images = max(1, min(max_images, codec.most_images))
        calls, images = workload.busy_calls(images), workload.call_images(images)
        return CallLimits(calls, images, mixed_lengths=codec.mixes_lengths)

    def _last_traits(self, model_name: str, model_version: str) -> EnsembleTraits | None:
        """The traits that were last read of an ensemble that may answer for a model and a version."""
        known = (self._traits.last((ensemble, "")) for ensemble, _ in self._ensembles(model_name, model_version))
        return next((traits for traits in known if traits is not None), None)

    async def all(self) -> list[ModelInfo]:
        """Every model with a version that is ready, by name."""
        index = await self._endpoint.index()
        names = sorted(_names(index))
        found = await asyncio.gather(*(self._describe(name, index) for name in names))
        described = {info.name: info for info in found if info is not None}
        lacking = self._health.lacking() if self._health else ()
        for name in lacking:
            if not any(name in pinned_versions(other, [name]) for other in _names(index)):
                described.setdefault(name, ModelInfo(name, (), ready=False, classes=0, reason=NOT_SERVED))
        return [described[name] for name in sorted(described)]

    async def one(self, name: str) -> ModelInfo | None:
        """One of `all`; None if there is no such model. Other models are not asked for."""
        index = await self._endpoint.index()
        names = _names(index)
        info = await self._describe(name, index) if name in names else None
        lacks = self._health is not None and name in self._health.lacking()
        if info is None and lacks and not any(name in pinned_versions(other, [name]) for other in names):
            info = ModelInfo(name, (), ready=False, classes=0, reason=NOT_SERVED)
        return info

    async def suggestion(self, name: str) -> str:
        """A question that suggests the model with the most similar name; "" if the model exists, or none is similar."""
        names = _names(await self._endpoint.index())
        similar = [] if name in names else difflib.get_close_matches(name, names, n=3)
        for each in similar:
            config = await self._endpoint.config(each)
            if self._codecs.takes_images(config) and parameters(config).get(MODEL_PARAMETER, each) == each:
                return f"did you mean {each!r}?"
        return ""

    async def labels(self, model_name: str, model_version: str) -> tuple[str, ...]:
        """The labels of one version's classes, by class id; see Backend.labels."""
        return await self._first(model_name, model_version, self._ensemble_labels)

    async def resize(self, model_name: str, model_version: str) -> Resize | None:
        """How one version's images are resized, by its preprocessor's parameters; see Backend.resize."""
        read = partial(read_resize, self._endpoint)
        return await self._resizes.get(
            (model_name, model_version), lambda name, version: self._first(name, version, read)
        )

    async def sequence_model(self, model_name: str, model_version: str) -> str:
        """The stateful model for the streams of one version of a model; raises ModelNotFound if there is none."""
        return await self._sequence_models.get((model_name, model_version), self._read_sequence_model)

    async def sequence_model_name(self, model_name: str, model_version: str) -> str:
        """The name of the stateful model for the streams of a model, whether or not there is one."""
        config = await self._first(model_name, model_version, self._endpoint.config)
        return parameters(config).get(SEQUENCE_PARAMETER, SEQUENCE_MODEL)

    async def _read_sequence_model(self, model_name: str, model_version: str) -> str:
        name = await self.sequence_model_name(model_name, model_version)
        try:
            given = {output.name for output in (await self._endpoint.config(name)).output}
        except ModelNotFound as exc:
            if self._health is not None and self._health.lacks(name):
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
        models = (name, *pinned_versions(name, _names(index)))
        if self._health is not None:
            self._health.expected.expect(models)
        try:
            # Triton loads the steps with the ensemble, including changed files.
            pause = 0.0
            for model in models:
                await asyncio.sleep(pause)
                began = time.monotonic()
                await self._endpoint.load(model)
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
            own_steps = steps(await self._endpoint.config(name))
            others = [model.name for model in index.models if model.state == READY and model.name not in own]
            needed = {step for other in others for step in steps(await self._endpoint.config(other))}
            for model in (*own, *(step for step in own_steps if step not in needed)):
                await self._endpoint.unload(model)
        except (ModelNotFound, ModelUnavailable):
            return own  # it is not loaded
        except GatewayError as exc:
            raise LoadFailed(f"Triton cannot unload {name!r}: {_reason(exc)}") from exc
        self._forget(name)
        return own

    def _ensembles(self, model_name: str, model_version: str) -> Sequence[tuple[str, str]]:
        """The ensembles, each with its own version, that may answer for a model's version."""
        if not model_version:
            return ((model_name, ""),)
        both = ((model_name, model_version), (pinned(model_name, model_version), ""))
        last = self._targets.get(both[0])
        return both if last is None or last.ensemble == model_name else both[::-1]

    async def _read_traits(self, ensemble: str, _version: str) -> EnsembleTraits:
        return await read_traits(self._endpoint, self._codecs, ensemble)

    async def _describe(self, name: str, index: RepositoryIndexResponse) -> ModelInfo | None:
        return await describe(self._endpoint, name, index, self._codecs, self._ensemble_labels)

    async def _ensemble_labels(self, ensemble: str, version: str) -> tuple[str, ...]:
        return await self._labels.get((ensemble, version), partial(read_labels, self._endpoint, self._codecs))

    async def _first(self, model_name: str, model_version: str, read: Callable[[str, str], Awaitable[T]]) -> T:
        """Call `read` for the first of these ensembles that exists; raises the last ModelNotFound."""
        missing: ModelNotFound | None = None
        for ensemble, version in self._ensembles(model_name, model_version):
            try:
                return await read(ensemble, version)
            except ModelNotFound as exc:
                missing = exc
        raise self._not_served(model_name, model_version, missing)

    def _not_served(self, model_name: str, model_version: str, error: ModelNotFound | None) -> GatewayError:
        """The error of a model that Triton does not find: ModelUnavailable if it should be served here."""
        error = error or ModelNotFound()
        if self._health is not None and self._health.lacks(model_name, model_version):
            unavailable = ModelUnavailable(NOT_LOADED)
            unavailable.__cause__ = error.__cause__
            return unavailable
        return error

    async def _index_with(self, name: str) -> RepositoryIndexResponse:
        index = await self._endpoint.index()
        if name not in _names(index):
            raise ModelNotFound(f"There is no model {name!r} in Triton's repository.")
        return index

    def _forget(self, name: str) -> None:
        for remembered in (self._traits, self._resizes, self._sequence_models, self._labels):
            remembered.forget(name)
        for target in self._targets.values():
            if target.ensemble == name:
                target.until = 0.0


def _names(index: RepositoryIndexResponse) -> set[str]:
    return {model.name for model in index.models}


def _wants_embeddings(call: Call, traits: EnsembleTraits) -> bool:
    """Whether to request FEATURES; raises NoFeatures if the call needs them and the model has none."""
    if call.embeddings is Embeddings.NEEDED and not traits.codec.embedding_size:
        raise no_features(call.model_name)
    return traits.codec.embedding_size > 0


async def _select(rows: Sequence[Row], call: Call, most: int | None, *, multi_label: bool) -> tuple[Row, ...]:
    """The rows with the selected classes of each image, out of the `most` best ones."""
    selection = call.selection
    assert selection is not None
    selected: list[Row] = []
    time_slice = TimeSlice()
    for row in rows:
        if selected:
            await time_slice.pause_if_over()
        known = Predictions.of(row.predictions)
        predictions = selection.apply(known[:most], multi_label=multi_label) if row.decoded else known
        best = known[: call.least_classes] if call.least_classes else NO_PREDICTIONS
        selected.append(Row(row.decoded, predictions, row.scores, row.error, row.embedding, best, row.damaged))
    return tuple(selected)


def _reason(error: GatewayError) -> str:
    """Triton's message, without the traceback of a Python model."""
    words = error.__cause__.message() if isinstance(error.__cause__, InferenceServerException) else error.message
    return words.partition("\n\nAt:")[0].strip()
