"""What the gateway knows of an ensemble before it calls it: its codec, its cache, and how many calls keep it busy."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import ModelStatisticsResponse

from gateway.errors import GatewayError
from gateway.inference.backend import CallLimits
from gateway.ingest.resizing import Resize, resize_of
from gateway.triton.client import TritonEndpoint
from gateway.triton.codecs import Codecs
from gateway.triton.configs import parameters, steps
from gateway.triton.contract import (
    DECODE_PARAMETER,
    DRIFT_REFERENCE_PARAMETER,
    FAST,
    SEQUENCE_MODEL,
    SEQUENCE_PARAMETER,
)
from gateway.triton.wire import Codec

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
class Ensemble:
    """The properties of an ensemble that determine how it is called."""

    name: str
    codec: Codec
    cached: bool = False
    """Whether its answers may come from Triton's response cache."""
    steps: Sequence[StepWorkload] = ()
    round_trip_seconds: float = 0.0
    """The seconds that an empty call to its Triton takes."""
    drift_reference: str = ""
    """The parameter of that name."""
    sequence_model: str = SEQUENCE_MODEL
    """The stateful model for its streams, which Triton may not have."""
    resize: Resize | None = None
    """How its preprocessor resizes images; None if that cannot be done in advance."""

    def limits(self, max_images: int) -> CallLimits:
        """How many calls keep its Triton busy, and how many images one of them may have, of at most `max_images`.

        The calls of a slow model have fewer images, so that no call takes long. Triton forms its batches from several
        calls; the cost of a call matters less to it.
        """
        images = min(max_images, self.codec.most_images)
        seconds = sum(step.seconds_per_image or 0.0 for step in self.steps)
        within = int(CALL_SECONDS / seconds) if seconds else images
        return CallLimits(self._busy_calls(images), min(images, max(within, LEAST_IMAGES)))

    def _busy_calls(self, images: int) -> int:
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


async def read_ensemble(endpoint: TritonEndpoint, codecs: Codecs, name: str, version: str = "") -> Ensemble:
    """Read an ensemble's configuration, and the statistics of its steps; raises ContractBroken."""
    config = await endpoint.config(name, version)
    codec = codecs.of(config)
    names = steps(config) or (name,)
    began = time.perf_counter()
    statistics = [await _statistics(endpoint, name)]
    round_trip_seconds = time.perf_counter() - began
    statistics += await asyncio.gather(*(_statistics(endpoint, step) for step in names))
    configs = await asyncio.gather(*map(endpoint.config, names), return_exceptions=True)
    workloads = [
        StepWorkload.of(step, each)
        for step, each in zip(configs, statistics[1:], strict=True)
        if isinstance(step, ModelConfig)  # a step that failed does not limit the others
    ]
    values, first = parameters(config), configs[0]
    preprocessing = parameters(first) if isinstance(first, ModelConfig) and steps(config) else {}
    return Ensemble(
        name,
        codec,
        cached=has_cache(config, statistics[0]),
        steps=workloads,
        round_trip_seconds=round_trip_seconds,
        drift_reference=values.get(DRIFT_REFERENCE_PARAMETER, ""),
        sequence_model=values.get(SEQUENCE_PARAMETER, SEQUENCE_MODEL),
        resize=resize_of(preprocessing, fast=values.get(DECODE_PARAMETER) == FAST),
    )


async def _statistics(endpoint: TritonEndpoint, name: str) -> ModelStatisticsResponse:
    """The statistics of a model; empty if Triton has none."""
    try:
        return await endpoint.statistics(name)
    except GatewayError:
        return ModelStatisticsResponse()
