"""`gateway doctor --run`: the whole service is started once, and measured."""

import re
from pathlib import Path

import pytest

from gateway.errors import UserError
from gateway.findings import Level
from gateway.machine.capacity import GPU_BATCH, Costs
from gateway.triton.configs import read_model_configs
from gateway_local.display import Display
from gateway_local.paths import SAMPLE, SHIPPED_EXAMPLES
from gateway_models.blocking_triton import BlockingTriton, TritonRefused
from gateway_models.proof.prove import BATCHES, WARM_UP_BATCHES, batch_milliseconds, prove
from tests.settings import Settings

CHECKS = ["cold start", "verify", "throughput", "costs"]
PHOTO = SHIPPED_EXAMPLES / SAMPLE


@pytest.mark.long
@pytest.mark.triton
def test_service_of_this_machine_is_run_and_its_costs_are_printed(model_repository, runtime, tmp_path, monkeypatch):
    monkeypatch.setenv("GATEWAY_LOG_LEVEL", "error")
    display = Display()
    found = list(prove(Settings(_env_file=None), model_repository, runtime, PHOTO, display, seconds=6))
    assert {each.check: each.level for each in found} == dict.fromkeys(CHECKS, Level.OK)
    texts = {each.check: each.text for each in found}
    assert "ms of a core for an image: preprocessor" in texts["costs"]
    costs = Costs.read(re.search(r"GATEWAY_COSTS=(.+)", texts["costs"])[1])
    assert costs != Costs()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"api_keys_file": Path("keys")}, "unset GATEWAY_API_KEYS_FILE"), ({"model": "other"}, "no ensemble 'other'")],
)
def test_what_cannot_be_run_is_refused(model_repository, runtime, fields, reason, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("keys").touch()
    monkeypatch.setenv("GATEWAY_LOG_LEVEL", "error")
    with pytest.raises(UserError, match=reason):
        list(prove(Settings(_env_file=None, **fields), model_repository, runtime, PHOTO, Display()))


def test_time_of_a_batch_is_that_of_tritons_statistics(light_triton, light_repository):
    """The way in which a network's time on a GPU is measured, with a network on the CPU."""
    config = read_model_configs(light_repository)["classifier"]
    with BlockingTriton(light_triton.url) as triton:
        before, _ = triton.spent("classifier", GPU_BATCH)
        assert 0 < batch_milliseconds(triton, "classifier", config, GPU_BATCH) < 100
        assert triton.spent("classifier", GPU_BATCH)[0] - before == WARM_UP_BATCHES + BATCHES
        with pytest.raises(TritonRefused, match="other"):
            batch_milliseconds(triton, "other", config, GPU_BATCH)
