"""Models on demand with a real Triton: its index, its statistics, and the memory of its processes."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest

from gateway.errors import ModelNotFound
from gateway.plugins.demand.backend import DemandBackend
from gateway.plugins.demand.plugin import Demand
from gateway.timing import Deadline
from gateway.triton.client import TritonEndpoint
from gateway_local.model_processes import processes
from gateway_local.runtime.base import TritonRuntime
from gateway_local.server import EmbeddedTriton
from tests.gateway.triton import small_repository
from tests.gateway.triton.fleet import MODEL, call_of, wait_until
from tests.gateway.triton.small_repository import PROCESS_BYTES, write_models
from tests.settings import Settings
from tests.tritons import running_triton

NETWORK_BYTES = 50 * 2**20
MODEL_BYTES = NETWORK_BYTES + small_repository.MODEL_BYTES
"""Recorded memory of a model with its two processes."""
NAMES = ("m00", "m01", "m02", "m03")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demand") / "models"
    assert tuple(write_models(folder, len(NAMES), nbytes=NETWORK_BYTES)) == NAMES
    return folder.resolve()


@pytest.fixture(scope="module")
def triton(runtime: TritonRuntime, repository: Path) -> Iterator[EmbeddedTriton]:
    with running_triton(runtime, repository, load_models=(MODEL,)) as server:
        yield server


def backend_over(triton: EmbeddedTriton, repository: Path | None, budget_bytes: int) -> DemandBackend:
    chosen = {"triton_url": triton.url, "model_repository": repository, "models_memory_bytes": budget_bytes}
    settings = Settings(_env_file=None, **chosen)
    backend = Demand(settings).backend()
    assert backend is not None
    return backend


@pytest.fixture
async def gateways(triton: EmbeddedTriton, repository: Path) -> AsyncIterator[list[DemandBackend]]:
    """Two gateways over a Triton with room for the default model and two others; one cannot read the repository."""
    backends = [backend_over(triton, folder, 3 * MODEL_BYTES) for folder in (repository, None)]
    for backend in backends:
        await backend.start()
    await wait_until(lambda: all(health.ready for backend in backends for health in backend.health()), 60)
    yield backends
    await asyncio.gather(*(backend.close() for backend in backends))


async def loaded(triton: EmbeddedTriton) -> set[str]:
    endpoint = TritonEndpoint(triton.url)
    try:
        index = await endpoint.index()
    finally:
        await endpoint.close()
    return {model.name for model in index.models if model.state == "READY" and model.name in NAMES}


async def test_every_request_is_answered_and_the_budget_holds(triton, repository, gateways):
    for number, name in enumerate(("m00", "m01", "m02", "m00", "m03", "m01")):
        backend = gateways[number % 2]
        await backend.loader.loaded(name, Deadline.after(60))
        (row,) = await backend.infer(call_of(b"image", model=name, seconds=60))
        assert row.error is None
        assert len(await loaded(triton)) <= 2
    found = {info.name: info for info in await gateways[0].models()}
    assert found.keys() > {*NAMES}
    assert triton.pid is not None
    taken = [each.own_bytes for each in processes(triton.pid) if each.model and each.model.name == "net"]
    assert taken
    assert all(NETWORK_BYTES < nbytes < NETWORK_BYTES + PROCESS_BYTES for nbytes in taken)


async def test_stream_loads_its_stateful_model(triton, gateways):
    """The model of its frames and the stateful model; the latter stays loaded."""
    first, second = gateways
    for backend in (first, second):
        sequence = await backend.sequence("m00", "")
        scores = await sequence.add(np.array([0.25, 0.75], np.float32), {}, Deadline.after(60), "test")
        assert scores.frames == 1
        await sequence.close()
    with pytest.raises(ModelNotFound):
        await first.sequence("nope", "")
