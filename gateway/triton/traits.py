"""The traits of an ensemble that decide how its calls are made, read from its Triton."""

import asyncio
import time
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import ModelStatisticsResponse

from gateway.errors import GatewayError
from gateway.triton.codec import Codec, Codecs
from gateway.triton.contract import DRIFT_REFERENCE_PARAMETER
from gateway.triton.endpoint import TritonEndpoint
from gateway.triton.model_config import parameters, steps
from gateway.triton.workload import StepWorkload, Workload, has_cache


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
