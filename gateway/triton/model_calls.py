"""The calls of one Triton's models, by the names and versions that clients use: each is answered by an ensemble."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, Self, TypeVar

from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import ModelStatisticsResponse

from gateway.errors import (
    ContractBroken,
    GatewayError,
    InferenceFailed,
    ModelNotFound,
    ModelUnavailable,
    UndecodableImage,
    no_features,
)
from gateway.inference.backend import Call, CallLimits, Embeddings
from gateway.inference.result import Predictions, Row
from gateway.timing import TimeSlice
from gateway.triton.client import ALL_CLASSES, NOT_LOADED, TritonEndpoint
from gateway.triton.configs import parameters, steps
from gateway.triton.contract import DRIFT_REFERENCE_PARAMETER, pinned
from gateway.triton.health.state import HealthState
from gateway.triton.wire import Codec, Codecs

CALL_SECONDS = 0.1
"""Measured seconds of one call in all steps: an image that comes next waits for the calls in flight."""
LEAST_IMAGES = 2
"""Images that a call may have however long they take."""


@dataclass(frozen=True, slots=True)
class StepWorkload:
    """One step of an ensemble."""

    instances: int
    preferred_images: int
    """The largest preferred batch size, 1 if there is none."""
    seconds_per_image: float | None
    """Busy time of an instance for one image, measured by Triton; None before the first image."""

    @classmethod
    def of(cls, config: ModelConfig, statistics: ModelStatisticsResponse) -> Self:
        """The workload of a model; `count` of an instance group applies to each of its GPUs."""
        instances = sum(group.count * max(1, len(group.gpus)) for group in config.instance_group)
        preferred = max(config.dynamic_batching.preferred_batch_size, default=1)
        return cls(instances or 1, preferred, _seconds_per_image(statistics))


@dataclass(frozen=True, slots=True)
class Workload:
    """The steps of an ensemble, and the seconds that an empty call to their Triton takes."""

    steps: Sequence[StepWorkload]
    round_trip_seconds: float

    def call_images(self, max_images: int) -> int:
        """How many images a call may have: `max_images`, or fewer of a slow model, so that no call takes long.

        The batches of a slow model are formed by Triton, from several calls; the cost of a call matters less to it.
        """
        seconds = sum(step.seconds_per_image or 0.0 for step in self.steps)
        within = int(CALL_SECONDS / seconds) if seconds else max_images
        return min(max_images, max(within, LEAST_IMAGES))

    def busy_calls(self, images: int) -> int:
        """How many calls with `images` each keep the slowest step busy.

        By Little's law that is the calls per second which this step can do, times the seconds that a call spends in
        all steps and on its way; at least one more than it has instances, so that a call waits for the next free one.
        A step that prefers batches of more than `images` needs as many calls for each instance as fill such a batch.
        Without measurements, each instance of each step has its call.
        """
        fill = [max(1, -(-step.preferred_images // images)) for step in self.steps]
        measured = [step.seconds_per_image * images for step in self.steps if step.seconds_per_image]
        if len(measured) < len(self.steps) or not measured:
            return 1 + sum(step.instances * calls for step, calls in zip(self.steps, fill, strict=True))
        calls_per_second, slowest = min(
            (step.instances / seconds, step.instances) for step, seconds in zip(self.steps, measured, strict=True)
        )
        seconds_in_all = sum(seconds * calls for seconds, calls in zip(measured, fill, strict=True))
        return max(slowest + 1, round(calls_per_second * (seconds_in_all + self.round_trip_seconds)))


def _seconds_per_image(statistics: ModelStatisticsResponse) -> float | None:
    """Busy time of an instance for one image, over all executions of a model; None if there were none.

    The statistics by batch size count each execution once; the model's statistics count it once for each request.
    """
    images, nanoseconds = 0, 0
    for model in statistics.model_stats:
        for batch in model.batch_stats:
            images += batch.batch_size * batch.compute_infer.count
            nanoseconds += batch.compute_input.ns + batch.compute_infer.ns + batch.compute_output.ns
    return nanoseconds / images / 1e9 if images else None


def has_cache(config: ModelConfig, statistics: ModelStatisticsResponse) -> bool:
    """Whether Triton's response cache may answer for an ensemble; assumed until statistics show that there is no cache.

    A Triton without `--cache-config` loads a model whose configuration enables the cache, and counts no misses.
    """
    counts = [model.inference_stats for model in statistics.model_stats]
    answered = sum(each.success.count for each in counts)
    return config.response_cache.enable and (
        not answered or any(each.cache_hit.count or each.cache_miss.count for each in counts)
    )


@dataclass(frozen=True, slots=True)
class EnsembleTraits:
    """The properties of an ensemble that determine how a call is made."""

    codec: Codec
    cached: bool
    """Whether its answers may come from Triton's response cache."""
    workload: Workload
    drift_reference: str = ""
    """The parameter of that name."""


async def read_traits(endpoint: TritonEndpoint, codecs: Codecs, ensemble: str) -> EnsembleTraits:
    """The traits of an ensemble; raises ContractBroken."""
    config = await endpoint.config(ensemble)
    codec = codecs.of(config)
    names = steps(config) or (ensemble,)
    began = time.perf_counter()
    statistics = [await _statistics(endpoint, ensemble)]
    round_trip_seconds = time.perf_counter() - began
    statistics += await asyncio.gather(*(_statistics(endpoint, name) for name in names))
    configs = await asyncio.gather(*map(endpoint.config, names), return_exceptions=True)
    workloads = [
        StepWorkload.of(step, each)
        for step, each in zip(configs, statistics[1:], strict=True)
        if isinstance(step, ModelConfig)  # a step that failed does not limit the others
    ]
    return EnsembleTraits(
        codec,
        has_cache(config, statistics[0]),
        Workload(workloads, round_trip_seconds),
        parameters(config).get(DRIFT_REFERENCE_PARAMETER, ""),
    )


async def _statistics(endpoint: TritonEndpoint, name: str) -> ModelStatisticsResponse:
    """The statistics of a model; empty if Triton has none."""
    try:
        return await endpoint.statistics(name)
    except GatewayError:
        return ModelStatisticsResponse()


SWITCH_PAUSES_SECONDS = (0.0, 0.05)
"""Pauses before a retry of a model that answered before and is not found."""
REMEMBERED_SECONDS = 10.0
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
        """Read the values of a name again, also if they are being read now."""
        self._values = {key: known for key, known in self._values.items() if key[0] != name}
        self._reads = {key: reading for key, reading in self._reads.items() if key[0] != name}


@dataclass(slots=True)
class Target:
    """The ensemble that answers for a model and a version, with the constants of its calls."""

    ensemble: str
    version: str
    """Its own version in Triton; "" for the newest."""
    traits: EnsembleTraits
    until: float
    """When the traits are read again, by time.monotonic."""


class ModelCalls:
    """The calls of one Triton's models; every method raises errors of gateway.errors only.

    The results of requests are recorded in `health`; a model that should be served and is not gets ModelUnavailable.
    """

    def __init__(self, endpoint: TritonEndpoint, health: HealthState, codecs: Codecs | None = None) -> None:
        self._endpoint = endpoint
        self._codecs = codecs or Codecs()
        self._health = health
        self._traits: Remembered[EnsembleTraits] = Remembered(REMEMBERED_SECONDS)
        self._targets: dict[tuple[str, str], Target] = {}
        """The last ensemble that answered for a model and a version."""

    async def infer(self, call: Call) -> Sequence[Row]:
        """Classify a batch; see Backend.infer."""
        target = self._targets.get((call.model_name, call.model_version))
        if target is None:
            return await self._search(call)
        try:
            if time.monotonic() < target.until:
                return await self._send(call, target)
            return await self._search(call)
        except (ModelNotFound, ModelUnavailable) as exc:
            if isinstance(exc, ModelUnavailable) and not _is_removed(exc, target.ensemble, call.model_name):
                raise
            # The version in use may have been replaced after Triton had chosen it for the call.
            for seconds in SWITCH_PAUSES_SECONDS:
                await asyncio.sleep(seconds)
                with suppress(ModelNotFound):
                    return await self._search(call)
            raise

    async def _search(self, call: Call) -> Sequence[Row]:
        """Send a call to the first existing ensemble that may answer for its model and version."""
        key = call.model_name, call.model_version
        missing: GatewayError | None = None
        for ensemble, version in self._ensembles(*key):
            sent_at = time.monotonic()
            try:
                traits = await self._traits.get((ensemble, ""), self._read_traits)
            except ModelNotFound as exc:
                missing = missing or exc
                continue
            except GatewayError as exc:
                self._record(exc, call, ensemble, sent_at)
                if not _is_removed(exc, ensemble, call.model_name):
                    raise
                missing = exc
                continue
            target = Target(ensemble, version, traits, self._traits.until((ensemble, "")))
            try:
                rows = await self._send(call, target)
            except ModelNotFound as exc:
                missing = missing or exc
            except ModelUnavailable as exc:
                if not _is_removed(exc, ensemble, call.model_name):
                    raise
                missing = exc
            else:
                self._targets[key] = target  # only now: clients choose the version
                return rows
        self._targets.pop(key, None)
        raise self._not_served(*key, missing)

    async def _send(self, call: Call, target: "Target") -> Sequence[Row]:
        """Send a call to an ensemble, in parts if it has too many images, and record its outcome in `health`."""
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
        infer = partial(self._endpoint.infer, class_count=class_count, embeddings=embeddings, codec=codec)
        images, most_images, sent_at = len(call.images), codec.most_images, time.monotonic()
        rows: Sequence[Row]
        try:
            if images == 1 and not codec.reports_images:
                rows = [await _row_of_lone_image(call, codec, infer)]
            elif images <= most_images:
                rows = await infer(call)
            else:  # the limits of the ensemble were not known when the call was formed, or have changed
                starts = range(0, images, most_images)
                parts = [call.of(range(start, min(start + most_images, images))) for start in starts]
                rows = [row for part in parts for row in await infer(part)]
        except ModelNotFound:
            raise
        except GatewayError as exc:
            self._record(exc, call, ensemble, sent_at)
            raise
        if not call.best_effort:
            self._health.answered(ensemble, sent_at)
        for row in rows:
            row.multi_label, row.drift_reference = multi_label, traits.drift_reference
        if selection is not None and not (
            # The best classes that Triton returns are the selection.
            most == class_count
            and selection.threshold is None
            and not selection.labels
            and (selection.top_k is not None or not multi_label)
        ):
            await _select(rows, call, most, multi_label=multi_label)
        return rows

    def _record(self, error: GatewayError, call: Call, ensemble: str, sent_at: float) -> None:
        """Record a failed call; raises ContractBroken if the last probe has found that to be the cause."""
        if not call.best_effort:
            self._health.suspect(ensemble, error, sent_at)
        if isinstance(error, InferenceFailed) and self._health.is_broken(ensemble):
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
        workload, images = traits.workload, min(max_images, traits.codec.most_images)
        return CallLimits(workload.busy_calls(images), workload.call_images(images))

    def _last_traits(self, model_name: str, model_version: str) -> EnsembleTraits | None:
        """The traits that were last read of an ensemble that may answer for a model and a version."""
        known = (self._traits.last((ensemble, "")) for ensemble, _ in self._ensembles(model_name, model_version))
        return next((traits for traits in known if traits is not None), None)

    def _ensembles(self, model_name: str, model_version: str) -> Sequence[tuple[str, str]]:
        """The ensembles, each with its own version, that may answer for a model's version."""
        if not model_version:
            return ((model_name, ""),)
        both = ((model_name, model_version), (pinned(model_name, model_version), ""))
        last = self._targets.get(both[0])
        return both if last is None or last.ensemble == model_name else both[::-1]

    async def _read_traits(self, ensemble: str, _version: str) -> EnsembleTraits:
        return await read_traits(self._endpoint, self._codecs, ensemble)

    def _not_served(self, model_name: str, model_version: str, error: GatewayError | None) -> GatewayError:
        """The error of a model that Triton does not find: ModelUnavailable if it should be served here."""
        error = error or ModelNotFound()
        if self._health.lacks(model_name, model_version):
            unavailable = ModelUnavailable(NOT_LOADED)
            unavailable.__cause__ = error.__cause__
            return unavailable
        return error


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


def _is_removed(error: GatewayError, ensemble: str, model_name: str) -> bool:
    """Whether a version's own ensemble may have been removed, so that the model's ensemble may answer for it."""
    return type(error) is ModelUnavailable and ensemble != model_name


def _wants_embeddings(call: Call, traits: EnsembleTraits) -> bool:
    """Whether to request FEATURES; raises NoFeatures if the call needs them and the model has none."""
    if call.embeddings is Embeddings.NEEDED and not traits.codec.embedding_size:
        raise no_features(call.model_name)
    return traits.codec.embedding_size > 0


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
