"""What `gateway doctor` says of a Triton whose models are loaded on demand."""

import asyncio

from gateway.findings import Finding, Level
from gateway_plugins.demand.doctor import check_triton
from gateway_plugins.demand.plugin import Demand
from tests.doubles.triton import FakeEndpoint, FakeTriton
from tests.plugins.demand.fleet import triton_with
from tests.settings import Settings

DEMAND = {"models_loaded": "demand", "models_memory_bytes": 2**30}


def findings(triton: FakeTriton) -> list[Finding]:
    endpoint = FakeEndpoint("10.0.0.1:8001", triton)
    return asyncio.run(check_triton(endpoint, Settings(_env_file=None, **DEMAND)))


def test_nothing_is_said_without_models_on_demand():
    assert asyncio.run(Demand.check_triton(Settings(_env_file=None), "10.0.0.1:8001")) == ()


def test_triton_with_few_models_is_as_it_should_be():
    (found,) = findings(triton_with(2))
    assert (found.level, found.text) == (Level.OK, "10.0.0.1:8001 has loaded 3 of 9 models")


def test_triton_that_has_loaded_everything_is_a_warning():
    triton = triton_with(2)
    triton.never_loaded.clear()
    (found,) = findings(triton)
    assert found.level is Level.WARN
    assert "all 9 models" in found.text
    assert "--load-model=ensemble_model" in found.advice
