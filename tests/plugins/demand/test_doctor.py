"""What `gateway doctor` says of a Triton whose models are loaded on demand."""

import asyncio

import pytest

from gateway.findings import Finding, Level
from gateway_plugins.demand.doctor import check_triton
from gateway_plugins.demand.plugin import Demand
from tests.doubles.triton import FakeEndpoint, FakeTriton
from tests.plugins.demand.fleet import FakeMeter, triton_with
from tests.settings import Settings

DEMAND = {"models_loaded": "demand", "models_memory_bytes": 2**30}


class SeenMeter(FakeMeter):
    async def machine(self, address: str, *, refreshed: bool = False) -> dict[str, int]:
        return {"host": 1}


def findings(triton: FakeTriton, meter: FakeMeter, **settings: object) -> list[Finding]:
    endpoint = FakeEndpoint("10.0.0.1:8001", triton)
    return asyncio.run(check_triton(endpoint, Settings(_env_file=None, **settings), meter))


def test_nothing_is_said_without_models_on_demand():
    assert asyncio.run(Demand.check_triton(Settings(_env_file=None), "10.0.0.1:8001")) == ()


def test_triton_with_few_models_is_as_it_should_be():
    (found,) = findings(triton_with(2), SeenMeter({}), **DEMAND)
    assert (found.level, found.text) == (Level.OK, "10.0.0.1:8001 has loaded 3 of 9 models")


def test_triton_that_has_loaded_everything_is_a_warning():
    triton = triton_with(2)
    triton.never_loaded.clear()
    (found,) = findings(triton, SeenMeter({}), **DEMAND)
    assert found.level is Level.WARN
    assert "all 9 models" in found.text
    assert "--load-model=ensemble_model" in found.advice


@pytest.mark.parametrize("local", [False, True])
def test_memory_that_cannot_be_read_is_a_warning(tmp_path, local):
    """Where Triton runs on this machine, the processes of its models show their memory."""
    settings = {**DEMAND, **({"model_repository": tmp_path} if local else {})}
    texts = [found.text for found in findings(triton_with(2), FakeMeter({}), **settings)[1:]]
    assert texts == ([] if local else [NOT_READ])


NOT_READ = "the metrics of 10.0.0.1:8001 cannot be read, so GATEWAY_MODELS_MEMORY_BYTES has no effect"
