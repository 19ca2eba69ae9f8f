from collections.abc import Iterator

import pytest

from gateway import metrics
from tests.counts import CORE_COUNTS


@pytest.fixture(autouse=True)
def own_counts(nothing_held: None) -> Iterator[None]:
    """Set the gauges of the process back: these tests drop a limiter together with its leases."""
    gauges = [getattr(metrics, name) for name in CORE_COUNTS]
    before = [next(iter(gauge.collect())).samples[0].value for gauge in gauges]
    yield
    for gauge, value in zip(gauges, before, strict=True):
        gauge.set(value)
