"""Models on demand: the plug-in and its settings."""

import asyncio
from typing import cast

import pytest
from pydantic import ValidationError

from gateway.app import create_app
from gateway.findings import Level
from gateway.hooks import Plugin, Plugins
from gateway.inference.backend import Backend
from gateway.plugins import installed
from gateway_plugins.demand.backend import DemandBackend
from gateway_plugins.demand.doctor import check_triton
from gateway_plugins.demand.plugin import Demand
from tests.doubles.backend import PNG, StubBackend
from tests.doubles.triton import FakeEndpoint
from tests.plugins.demand.fleet import triton_with
from tests.services import client_of_app
from tests.settings import Settings

DEMAND = {"models_loaded": "demand", "models_memory_bytes": 2**30, "load_models": ("flowers",)}
NOBODY = "127.0.0.1:1"
"""No Triton listens there."""


@pytest.mark.anyio
async def test_backend_is_that_of_the_settings():
    assert Demand(Settings(_env_file=None)).backend(Plugins()) is None
    backend = Demand(Settings(_env_file=None, triton_url=NOBODY, **DEMAND)).backend(Plugins())
    assert isinstance(backend, DemandBackend)
    assert backend.loader.is_fixed("flowers")
    assert not backend.loader.is_fixed("birds")
    await backend.close()


class Stubbed(Plugin):
    """Supplies a backend without any Triton."""

    def backend(self, plugins) -> Backend:
        return cast("Backend", StubBackend())


def test_application_uses_the_backend_of_a_plugin():
    app = create_app(Settings(_env_file=None, triton_url=NOBODY), plugins=(*installed(), Stubbed))
    with client_of_app(app) as client:
        answer = client.post("/predict", files={"f": PNG})
    assert (answer.status_code, answer.json()["summary"]) == (200, {"ok": 1, "failed": 0})


def test_models_on_demand_need_a_budget_and_are_not_all_loaded():
    with pytest.raises(ValidationError, match="GATEWAY_MODELS_LOADED=demand needs GATEWAY_MODELS_MEMORY_BYTES"):
        Settings(_env_file=None, models_loaded="demand")
    assert Settings(_env_file=None, models_loaded="demand", models_memory_bytes="1").models_memory_bytes == 1
    fields = {"models_loaded": "demand", "models_memory_bytes": "16GiB"}
    with pytest.raises(ValidationError, match="name the models that always stay loaded"):
        Settings(_env_file=None, load_models="*", **fields)
    assert Settings(_env_file=None, load_models="flowers,birds", **fields).load_models == ("flowers", "birds")


def test_triton_that_has_loaded_everything_is_a_warning():
    triton, settings = triton_with(2), Settings(_env_file=None, **DEMAND)
    endpoint = FakeEndpoint("10.0.0.1:8001", triton)
    (found,) = asyncio.run(check_triton(endpoint, settings))
    assert (found.level, found.text) == (Level.OK, "10.0.0.1:8001 has loaded 3 of 9 models")
    triton.never_loaded.clear()
    (found,) = asyncio.run(check_triton(endpoint, settings))
    assert found.level is Level.WARN
    assert "all 9 models" in found.text
    assert "--load-model=ensemble_model" in found.advice
    # Nothing is said without models on demand.
    assert asyncio.run(Demand.check_triton(Settings(_env_file=None), "10.0.0.1:8001")) == ()
