"""What an image costs here is measured by a run of the whole service."""

from pathlib import Path

import cv2
import httpx
import numpy as np
import pytest

from gateway_local.config_text import parse
from gateway_local.cost_record import (
    BATCHES,
    WARM_UP_BATCHES,
    NotMeasured,
    batch_milliseconds,
    measure_costs,
    numbered,
    record_costs,
    recorded_costs,
)
from gateway_local.display import Lines
from gateway_machine.capacity import GPU_BATCH
from tests.processes import PROJECT
from tests.settings import Settings

SAMPLE = (PROJECT / "examples" / "cat.jpg").read_bytes()


def settings(**fields: object) -> Settings:
    return Settings(_env_file=None, **fields)


def test_numbered_jpegs_differ_and_have_the_same_pixels():
    one, two = numbered(SAMPLE, 1), numbered(SAMPLE, 2)
    assert one != two
    pixels = [cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) for data in (SAMPLE, one, two)]
    assert (pixels[0] == pixels[1]).all()
    assert (pixels[0] == pixels[2]).all()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"api_keys_file": Path("keys")}, "unset GATEWAY_API_KEYS_FILE"), ({"model": "other"}, "no ensemble 'other'")],
)
def test_what_cannot_be_measured_is_refused(model_repository, runtime, fields, reason, monkeypatch):
    monkeypatch.setenv("GATEWAY_LOG_LEVEL", "error")
    display = Lines(print, print)
    with pytest.raises(NotMeasured, match=reason):
        measure_costs(settings(**fields), model_repository, runtime, SAMPLE, display)


@pytest.mark.long
def test_costs_of_each_stage_are_measured_and_kept(light_repository, runtime, tmp_path, monkeypatch):
    monkeypatch.setenv("GATEWAY_LOG_LEVEL", "error")
    display = Lines(print, lambda _: None)
    costs, network = measure_costs(settings(), light_repository, runtime, SAMPLE, display)
    assert network == light_repository / "classifier"
    found = (costs.gateway_ms, costs.triton_ms, costs.preprocessor_ms, costs.network_ms)
    assert all(0.01 < each < 1_000 for each in found)
    # The network computes nothing.
    assert costs.network_ms < costs.preprocessor_ms + costs.gateway_ms
    record_costs(costs, network, tmp_path)
    assert recorded_costs(light_repository, tmp_path) == costs


def test_time_of_a_batch_is_that_of_tritons_statistics(light_triton, light_repository):
    """The way in which a network's time on a GPU is measured, with a network on the CPU."""
    config = parse((light_repository / "classifier" / "config.pbtxt").read_text())
    milliseconds = batch_milliseconds(light_triton.http_url, "classifier", config)
    assert 0 < milliseconds < 100
    statistics = httpx.get(f"{light_triton.http_url}/v2/models/classifier/stats", timeout=60).json()["model_stats"][0]
    (of_size,) = [each for each in statistics["batch_stats"] if each["batch_size"] == GPU_BATCH]
    assert of_size["compute_infer"]["count"] == WARM_UP_BATCHES + BATCHES
    with pytest.raises(NotMeasured, match="other"):
        batch_milliseconds(light_triton.http_url, "other", config)
