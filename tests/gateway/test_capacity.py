"""The arithmetic of docs/guides/sizing.md."""

import pytest

from gateway.capacity import GATEWAY_MS, MAX_PREPROCESSORS, PREPROCESS_MS, TRITON_MS, plan
from gateway.settings import Settings

MACHINES = [(cores, gpus) for cores in (1, 2, 3, 4, 8, 16, 32, 96, 256) for gpus in (0, 1, 2, 8)]


def test_gpu_machine_is_divided_by_the_work_of_each_part():
    found = plan(16, 1)
    assert (found.workers, found.preprocessors, found.networks) == (7, 7, 2)
    assert (found.preferred, found.call_images) == ((8, 16, 32), 8)
    # 2 × 8 images for each preprocessor and 2 × 32 for each network, over 7 workers, in whole calls of 8.
    assert found.images_in_flight == 40 >= (2 * 8 * 7 + 2 * 32 * 2) / 7
    assert found.images_per_second == pytest.approx(7_000 / PREPROCESS_MS)
    assert found.limited_by == "preprocessors"


def test_defaults_suit_two_cores_without_a_gpu():
    found = plan(2, 0)
    assert (found.workers, found.preprocessors, found.networks, found.preferred) == (1, 2, 2, (4, 8))
    assert found.call_images == Settings.model_fields["batch_max_images"].default
    assert found.calls_of_a_request == Settings.model_fields["request_max_calls"].default
    assert found.queue_delay_us == 0


def test_slow_network_on_the_gpu_is_the_bottleneck():
    found = plan(16, 1, gpu_network_ms=10)
    assert (found.limited_by, found.images_per_second) == ("network", pytest.approx(100))
    assert plan(16, 4, gpu_network_ms=10).images_per_second == pytest.approx(400)


@pytest.mark.parametrize(("cores", "gpus"), MACHINES)
def test_every_plan_is_consistent(cores, gpus):
    found = plan(cores, gpus)
    settings = Settings(_env_file=None, **found.settings())
    assert settings.batch_max_images <= settings.max_images_in_flight
    assert found.preprocessors <= MAX_PREPROCESSORS
    assert found.networks >= 1
    # Enough in flight that each preprocessor has a call in hand and the next one waiting.
    in_flight = found.workers * found.images_in_flight
    assert in_flight >= 2 * found.call_images * found.preprocessors
    if gpus:
        assert in_flight >= 2 * found.preferred[-1] * found.networks * gpus
    assert found.images_per_second <= cores * 1_000 / (GATEWAY_MS + TRITON_MS + PREPROCESS_MS) + 1e-6


@pytest.mark.parametrize("gpus", [0, 1, 4])
def test_more_cores_are_never_worse(gpus):
    rates = [plan(cores, gpus).images_per_second for cores in (2, 4, 8, 16, 32)]
    assert rates == sorted(rates)


@pytest.mark.parametrize("machine", [(0, 1), (4, -1)])
def test_impossible_machine_is_refused(machine):
    with pytest.raises(ValueError, match="at least one core"):
        plan(*machine)
