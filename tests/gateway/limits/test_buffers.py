"""Default buffer sizes that fit the available memory."""

import pytest

from gateway.limits.buffers import HELD, fitted, needed
from gateway.machine.capacity import WORKER_BYTES
from gateway.settings import MIB
from gateway_models.predictions.settings import FILE_BYTES, PACKAGES_BYTES, QUEUE_BYTES
from tests.settings import Settings


def settings(**fields: object) -> Settings:
    return Settings(_env_file=None, **fields)


DEFAULTS = settings()
FULL = WORKER_BYTES + sum(getattr(DEFAULTS, name) for name in (*HELD, "decode_memory_bytes"))


CACHE = DEFAULTS.triton_cache_bytes


@pytest.mark.parametrize(
    ("workers", "budget", "with_triton", "lowered"),
    [
        (1, FULL, False, False),
        (1, FULL - 1, False, True),
        (2, 2 * FULL, False, False),
        (2, 2 * FULL - 1, False, True),
        # Triton's response cache counts once, with Triton.
        (2, 2 * FULL + CACHE, True, False),
        (2, 2 * FULL + CACHE - 1, True, True),
    ],
)
def test_defaults_are_lowered_only_where_they_do_not_fit(workers, budget, with_triton, lowered):
    found = fitted(settings(workers=workers), budget, with_triton=with_triton)
    assert bool(found) is lowered
    assert ("triton_cache_bytes" in found) is (lowered and with_triton)


def test_lowered_sizes_fit_the_budget():
    budget = WORKER_BYTES + 800 * MIB
    found = DEFAULTS.model_copy(update=fitted(DEFAULTS, budget, with_triton=False))
    assert needed(found) + found.decode_memory_bytes <= budget
    assert found.max_bytes_waiting < DEFAULTS.max_bytes_waiting


def test_lowered_settings_do_not_contradict_others():
    found = fitted(settings(max_file_bytes=200 * MIB), 0, with_triton=False)
    assert found["max_bytes_waiting"] == 200 * MIB


def test_prediction_log_counts_for_each_worker():
    """Its packages, its queue and a file; so a small machine gets smaller buffers with a log."""
    settings = {"_env_file": None, "workers": 2, "log_predictions": "log"}
    without = Settings(_env_file=None, workers=2)
    more = PACKAGES_BYTES + QUEUE_BYTES + FILE_BYTES
    assert needed(Settings(**settings)) == needed(without) + 2 * more
    budget = 4_000 * MIB
    assert fitted(without, budget, with_triton=False) == {}
    lowered = fitted(Settings(**settings), needed(without), with_triton=False)
    assert lowered["max_bytes_in_flight"] < without.max_bytes_in_flight
