"""The arithmetic of docs/guides/sizing.md."""

import re
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.machine.capacity import (
    CALL_IMAGES,
    MAX_INSTANCES,
    MAX_WORKERS,
    SPARE_INSTANCES,
    Costs,
    fitting_plan,
    plan,
)
from tests.processes import PROJECT
from tests.settings import Settings

COSTS = Costs()
MACHINES = [(cores, gpus) for cores in (0.5, 1, 1.5, 2, 3, 4, 8, 16, 32, 96, 256) for gpus in (0, 1, 2, 8)]


def test_guide_has_the_plans_of_its_machines():
    text = (PROJECT / "docs" / "guides" / "sizing.md").read_text()
    rows = re.findall(r"^\| (\d+) cores?(?:, (\d+) GPUs?)?( for Triton alone)? \|(.*)\|$", text, re.MULTILINE)
    assert len(rows) == 8
    for cores, gpus, alone, columns in rows:
        found = plan(int(cores), int(gpus or 0), triton_alone=bool(alone))
        workers = "–" if alone else str(found.workers)
        rate = f"{found.images_per_second:,.0f}"
        numbers = [workers, found.preprocessors, found.networks, found.images_in_flight, found.grpc_threads, rate]
        assert [each.strip() for each in columns.split("|")] == list(map(str, numbers))


@pytest.mark.parametrize(
    ("cores", "gpus", "costs", "expected"),
    [
        (16, 0, {"network_ms": 2.6}, {"workers": 4, "preprocessors": 5, "networks": 7}),
        # A GPU reduces the counts only if its time is known.
        (16, 1, {"gpu_network_ms": 0.05}, {"preprocessors": plan(16, 1).preprocessors}),
        (16, 1, {"gpu_network_ms": 0.3}, {"workers": 5, "preprocessors": 6, "networks": 2}),
        (16, 1, {"gpu_network_ms": 10}, {"images_per_second": pytest.approx(100)}),
        (16, 4, {"gpu_network_ms": 10}, {"images_per_second": pytest.approx(400)}),
    ],
)
def test_measured_costs_change_the_plan(cores, gpus, costs, expected):
    found = plan(cores, gpus, Costs(**costs))
    assert {name: getattr(found, name) for name in expected} == expected


def test_triton_alone_has_all_cores():
    found = plan(12, 1, triton_alone=True)
    assert found.preprocessors == 11
    assert not any("of the gateway" in line for line in found.explained())
    assert found.machine == "12 cores, 1 GPU for Triton alone"
    assert plan(12, 1).preprocessors == 7


TIMES = st.floats(0.1, 50)
ALL_COSTS = st.builds(
    Costs,
    gateway_ms=TIMES,
    triton_ms=TIMES,
    preprocessor_ms=TIMES,
    network_ms=TIMES,
    gpu_network_ms=st.none() | TIMES,
)


@given(st.integers(1, 64), st.integers(0, 8), st.booleans(), st.just(COSTS) | ALL_COSTS)
@example(16, 1, False, COSTS)
@example(12, 1, True, COSTS)
def test_every_stage_has_the_processes_of_the_rate(cores, gpus, triton_alone, costs):
    """No stage lacks a process for the rate, or has a whole one more than it can use."""
    found = plan(cores, gpus, costs, triton_alone=triton_alone)
    stages = [
        (found.preprocessors, costs.preprocessor_ms),
        *([] if triton_alone else [(found.workers, costs.gateway_ms)]),
        *([] if gpus else [(found.networks, costs.network_ms)]),
    ]
    for count, milliseconds in stages:
        busy = found.images_per_second * milliseconds / 1_000
        assert busy <= count + 1e-6
        assert count - busy < 1 + 1e-6 or count <= SPARE_INSTANCES
        assert count <= max(cores, SPARE_INSTANCES)


@given(ALL_COSTS)
def test_costs_are_read_as_they_are_written(costs):
    """Costs that are not given have their defaults."""
    again = Costs.read(costs.text)
    for name in ("gateway_ms", "triton_ms", "preprocessor_ms", "network_ms", "gpu_network_ms"):
        assert getattr(again, name) == pytest.approx(getattr(costs, name), rel=1e-5)
    assert Costs.read("") == COSTS
    assert Costs.read(" gpu_network_ms=0.08, ") == Costs(gpu_network_ms=0.08)
    assert COSTS.text == ""


@pytest.mark.parametrize(("cores", "gpus"), MACHINES)
def test_every_plan_is_consistent(cores, gpus):
    found = plan(cores, gpus)
    Settings(_env_file=None, **found.settings())
    assert 1 <= found.preprocessors <= MAX_INSTANCES
    assert 1 <= found.networks <= MAX_INSTANCES
    assert 1 <= found.workers <= MAX_WORKERS
    # A call in work and one that waits for each busy core.
    core_ms = COSTS.gateway_ms + COSTS.triton_ms + COSTS.preprocessor_ms + (0 if gpus else COSTS.network_ms)
    busy = min(cores, found.images_per_second * core_ms / 1_000)
    assert found.all_images_in_flight >= 2 * CALL_IMAGES * busy * 0.999


NO_COSTS = ("network_ms", "network_ms=", "network_ms=0", "network_ms=nan", "cpu_ms=1", "1.5")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: plan(0, 1), "more than 0 cores"),
        (lambda: plan(4, -1), "more than 0 cores"),
        *((partial(Costs.read, text), "no NAME=MILLISECONDS") for text in NO_COSTS),
        (partial(Settings, _env_file=None, costs=NO_COSTS[0]), "no NAME=MILLISECONDS"),
    ],
)
def test_impossible_machine_or_cost_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_plan_is_reduced_in_proportion_until_it_fits():
    whole = plan(64, 0)
    found = fitting_plan(64, 0, None, lambda each: each.models_bytes <= whole.models_bytes / 4)
    assert found.models_bytes <= whole.models_bytes / 4
    assert fitting_plan(64, 0, None, lambda each: each.cores <= found.cores + 1).models_bytes > whole.models_bytes / 4
    assert found.networks < whole.networks
    assert found.preprocessors < whole.preprocessors
    assert f"{found.cores:g} of 64 cores, since memory allows no more" in found.explained()[0]
    # A plan that never fits becomes the plan for one core.
    assert fitting_plan(4, 0, None, lambda _: False).cores == 1
    assert fitting_plan(0.5, 0, None, lambda _: False).cores == 0.5
