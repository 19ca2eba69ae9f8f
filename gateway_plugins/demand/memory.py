"""The memory of models on demand: as recorded when they were added, or by the table of runtimes."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc.service_pb2 import RepositoryIndexResponse

from gateway.errors import GatewayError
from gateway.triton.contract import MODEL_PARAMETER, breaches
from gateway.triton.health.expected import READY
from gateway.triton.model_config import ModelConfig, parameters, read_model_configs, steps
from gateway.triton.replica import Replica
from gateway_plugins.demand.footprint import Files, Footprint, footprint, need, records

HOST, GPU = "host", "GPU"
"""The keys of `Amounts`: host memory, and memory of each GPU."""

Amounts = Mapping[str, int]
"""Bytes of host memory and of each GPU."""
SIZED = "configs/sized.pbtxt"
"""The configuration that Triton reads instead of config.pbtxt where it exists."""


@dataclass(frozen=True, slots=True)
class Described:
    """What the configuration of a model says, before any Triton has loaded it."""

    steps: tuple[str, ...]
    amounts: Amounts


class ModelDescriptions:
    """The steps and the memory of models: from the repository, if it can be read here, or from a Triton's own copy.

    A Triton elsewhere gives the configurations of models that it has loaded, not of others. `gpus` is the number of
    its GPUs.
    """

    def __init__(self, repository: Path | None, *, gpus: int = 0) -> None:
        self.repository = repository
        self._gpus = gpus

    async def of_repository(self) -> Mapping[str, Described] | None:
        """All models for clients; None if the repository cannot be read here."""
        return None if self.repository is None else await asyncio.to_thread(self._read, self.repository)

    async def of_triton(self, replica: Replica, name: str, index: RepositoryIndexResponse) -> Described | None:
        """A model that a Triton has loaded; None if it does not give its configurations."""
        try:
            ensemble = await replica.endpoint.config(name)
            parts = steps(ensemble)
            configs = {part: await replica.endpoint.config(part) for part in dict.fromkeys(parts)}
        except GatewayError:
            return None
        known = records({name: ensemble})
        loaded = [model.name for model in index.models if model.state == READY]
        found = (
            footprint(part, config, Files(max(1, loaded.count(part))), known.get(part), gpus=self._gpus)
            for part, config in configs.items()
        )
        return Described(parts, _amounts(found))

    def _read(self, repository: Path) -> dict[str, Described]:
        configs = read_model_configs(repository, SIZED)
        footprints = {each.model: each for each in need(repository, configs, gpus=self._gpus).footprints}
        found = {}
        for name in configs:
            if _is_for_clients(name, configs):
                parts = steps(configs[name])
                found[name] = Described(parts, _amounts(footprints[each] for each in {*parts} & footprints.keys()))
        return found


def _is_for_clients(name: str, configs: Mapping[str, ModelConfig]) -> bool:
    """Whether a model keeps the contract and is not the ensemble of one version."""
    config = configs[name]
    return not breaches(config) and parameters(config).get(MODEL_PARAMETER, name) == name


def _amounts(footprints: Iterable[Footprint]) -> Amounts:
    found = tuple(footprints)
    host = sum(each.processes * each.usual_bytes for each in found)
    return {HOST: host, GPU: sum(each.gpu_bytes for each in found)}
