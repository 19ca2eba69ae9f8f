"""Between the loads of several models, calls get the cores."""

from contextlib import suppress

import pytest

from gateway.errors import GatewayError
from gateway.triton import catalogue
from gateway.triton.load_pauses import pause_seconds
from tests.gateway.triton.fleet import fleet_of


@pytest.mark.parametrize(("load", "pause"), [(0.0, 0.0), (0.9, 0.0), (4.0, 1.0), (60.0, 5.0)])
def test_pause_follows_the_load(load, pause):
    assert pause_seconds(load) == pause


async def test_versions_of_a_model_are_loaded_with_pauses(monkeypatch):
    """One after the other: each load ends before the pause for it is computed."""
    loads = []

    async with fleet_of(1) as fleet:
        (triton,) = fleet.tritons.values()
        monkeypatch.setattr(catalogue, "pause_seconds", lambda _: loads.append(len(triton.done)) or 0.0)
        triton.ensembles.update({f"ensemble_model.v{number}": ("preprocessor", "net") for number in (1, 2, 3)})
        with suppress(GatewayError):
            await fleet.backend.load("ensemble_model")
    assert loads == [1, 2, 3, 4]
