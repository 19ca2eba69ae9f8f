"""Gauges of requests' resources: 0 when a test has ended, since nothing of a request may outlive it."""

import gc
import sys
from collections.abc import Iterator

import pytest

from tests.processes import wait_for

CORE_COUNTS = (
    "IMAGES_IN_FLIGHT",
    "IMAGES_WAITING",
    "BYTES_IN_FLIGHT",
    "BYTES_WAITING",
    "ANSWER_BYTES",
    "CONNECTIONS",
    "DECODING_BYTES",
    "STREAMS",
)
COUNTS = {
    "gateway.metrics": CORE_COUNTS,
    "gateway.plugins.urls.metrics": ("FETCHES",),
}
"""Their names by module."""


def counts() -> dict[str, float]:
    """The gauges of this process that are not 0."""
    loaded = ((sys.modules[module], names) for module, names in COUNTS.items() if module in sys.modules)
    gauges = (getattr(module, name) for module, names in loaded for name in names)
    samples = (sample for gauge in gauges for each in gauge.collect() for sample in each.samples)
    return {sample.name: sample.value for sample in samples if sample.value}


@pytest.fixture(autouse=True)
def nothing_held(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test after which something of a request is still counted."""
    before = counts()
    yield
    if counts() != before:
        gc.collect()
    browses = "browser" in request.fixturenames  # a browser keeps connections for its next requests
    wait_for(lambda: browses or counts().items() <= before.items(), timeout_seconds=5)
