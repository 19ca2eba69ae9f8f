"""The arithmetic of docs/guides/sizing.md."""

import json
import re
from functools import partial
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway_machine.capacity import (
    CALL_IMAGES,
    DEFAULT_PINNED_POOL_BYTES,
    IN_FLIGHT_PER_GPU,
    MAX_INSTANCES,
    MAX_WORKERS,
    MIB,
    SPARE_INSTANCES,
    Costs,
    fitting_plan,
    machine_rate,
    pinned_pool_bytes,
    plan,
)
from tests.processes import PROJECT
from tests.settings import Settings

COSTS = Costs()
MACHINES = [(cores, gpus) for cores in (0.5, 1, 1.5, 2, 3, 4, 8, 16, 32, 96, 256) for gpus in (0, 1, 2, 8)]


GOLDEN = Path(__file__).with_name("plans.json")
GOLDEN_MACHINES = [(cores, gpus) for cores in (1, 2, 4, 16, 64) for gpus in (0, 1, 8)]
CLOSE = 1.5


def rendered(cores, gpus):
    """What a machine runs, for the golden file."""
    found = plan(cores, gpus)
    return {
        "gateway processes": found.workers,
        "preprocessors": found.preprocessors,
        "networks on each GPU" if gpus else "networks": found.networks,
        "preferred batches": list(found.preferred),
        "queue delay us": found.queue_delay_us,
        "gRPC threads": found.grpc_threads,
        "load threads": found.load_threads,
        **found.settings(),
        "memory MiB": found.memory_bytes // 2**20,
        "shared memory MiB": found.shared_memory_bytes // 2**20,
        "images/s": {part: round(rate) for part, rate in found.ceilings.items()},
        "limited by": found.limited_by,
    }


def test_plans_are_those_of_the_golden_file():
    """To write it again: python -m tests.gateway_machine.test_capacity."""
    assert golden() == json.loads(GOLDEN.read_text())


def golden():
    return {f"{cores} cores, {gpus} GPUs": rendered(cores, gpus) for cores, gpus in GOLDEN_MACHINES}


@pytest.mark.parametrize(("cores", "gpus"), GOLDEN_MACHINES)
def test_stages_can_do_about_the_same(cores, gpus):
    """No stage is slower than the machine's cores or GPUs, or more than 1.5 times as fast as it must be.

    Except by the smallest number of processes there is: one, or SPARE_INSTANCES.
    """
    found = plan(cores, gpus)
    needed = machine_rate(cores, gpus, COSTS)
    for stage in found.stages:
        assert stage.images_per_second >= needed * 0.999
        is_hardware = stage.name == "network" and gpus
        least = SPARE_INSTANCES if stage.name != "gateway" else 1
        if not is_hardware and stage.count > least:
            assert stage.images_per_second <= CLOSE * needed


@pytest.mark.parametrize(
    ("cores", "gpus", "costs", "expected"),
    [
        (16, 0, {"network_ms": 2.6}, {"workers": 4, "preprocessors": 5, "networks": 7}),
        # A GPU reduces the counts only if its time is known.
        (16, 1, {"gpu_network_ms": 0.05}, {"preprocessors": plan(16, 1).preprocessors}),
        (16, 1, {"gpu_network_ms": 0.3}, {"workers": 5, "preprocessors": 6, "networks": 2}),
        (16, 1, {"gpu_network_ms": 0.3}, {"images_per_second": pytest.approx(1_000 / 0.3)}),
        (16, 1, {"gpu_network_ms": 10}, {"limited_by": "network", "images_per_second": pytest.approx(100)}),
        (16, 4, {"gpu_network_ms": 10}, {"images_per_second": pytest.approx(400)}),
    ],
)
def test_measured_costs_change_the_plan(cores, gpus, costs, expected):
    found = plan(cores, gpus, Costs(**costs))
    assert {name: getattr(found, name) for name in expected} == expected


def test_triton_alone_has_all_cores():
    found = plan(12, 1, triton_alone=True)
    assert found.preprocessors == 11
    assert [stage.name for stage in found.stages] == ["preprocessor", "network"]
    assert found.machine == "12 cores, 1 GPU for Triton alone"
    assert found.memory_bytes == found.models_bytes
    assert plan(12, 1).preprocessors == 7


def test_pinned_pool_holds_the_images_in_flight():
    image = 3 * 224 * 224 * 4
    most = DEFAULT_PINNED_POOL_BYTES // image
    assert pinned_pool_bytes(image, most) == DEFAULT_PINNED_POOL_BYTES
    assert pinned_pool_bytes(image, most + 1) == DEFAULT_PINNED_POOL_BYTES + MIB
    # 64 cores and 8 GPUs have 1.1 GB in flight.
    assert pinned_pool_bytes(image, plan(64, 8).all_images_in_flight) > 4 * DEFAULT_PINNED_POOL_BYTES


def test_guide_has_the_plans_of_eight_machines():
    text = (PROJECT / "docs" / "guides" / "sizing.md").read_text()
    rows = re.findall(r"^\| (\d+) cores(?:, (\d+) GPUs?)?( for Triton alone)? \|(.*--grpc.*)\|$", text, re.MULTILINE)
    assert len(rows) == 8
    for cores, gpus, alone, columns in rows:
        found = plan(int(cores), int(gpus or 0), triton_alone=bool(alone))
        *_, preprocessors, networks, options, rate = (each.strip() for each in columns.split("|"))
        assert (int(preprocessors), int(networks)) == (found.preprocessors, found.networks)
        assert rate == f"{found.images_per_second:,.0f}"
        wanted = f"`--grpc-infer-thread-count={found.grpc_threads}`"
        if gpus:
            size = pinned_pool_bytes(3 * 224 * 224 * 4 + 4, found.all_images_in_flight)
            wanted += f" `--pinned-memory-pool-byte-size={size}`"
        assert options == wanted


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
def test_no_stage_idles_a_core_while_another_is_the_limit(cores, gpus, triton_alone, costs):
    """Only the cores and measured GPUs are limits, and no stage has a whole process more than it can use."""
    found = plan(cores, gpus, costs, triton_alone=triton_alone)
    rate = found.images_per_second
    idle_cores = cores - rate * found.core_ms / 1_000
    gpu_is_the_limit = gpus and costs.gpu_network_ms is not None and rate >= gpus * 999 / costs.gpu_network_ms
    assert idle_cores <= 1 or gpu_is_the_limit
    for stage in found.stages:
        if stage.name == "network" and gpus:
            continue
        busy = rate * stage.count / stage.images_per_second
        assert stage.count - busy < 1 + 1e-6 or stage.count <= SPARE_INSTANCES
        assert stage.count <= max(cores, SPARE_INSTANCES)


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
    settings = Settings(_env_file=None, **found.settings())
    assert settings.batch_max_images <= settings.max_images_in_flight
    assert 1 <= found.preprocessors <= MAX_INSTANCES
    assert 1 <= found.networks <= MAX_INSTANCES
    assert 1 <= found.workers <= MAX_WORKERS
    # A call in work and one that waits for each busy core, and for each busy GPU.
    milliseconds = COSTS.gateway_ms + COSTS.triton_ms + COSTS.preprocessor_ms + (0 if gpus else COSTS.network_ms)
    busy = machine_rate(cores, gpus, COSTS) * milliseconds / 1_000
    in_flight = found.workers * found.images_in_flight
    assert in_flight >= 2 * CALL_IMAGES * busy * 0.999 + (IN_FLIGHT_PER_GPU if gpus else 0)
    assert found.images_per_second <= machine_rate(cores, gpus, COSTS) + 1e-6


@pytest.mark.parametrize("gpus", [0, 1, 4])
def test_more_cores_are_never_slower(gpus):
    rates = [plan(cores, gpus).images_per_second for cores in (1, 1.5, 2, 4, 8, 16, 32)]
    assert rates == sorted(rates)


NO_COSTS = ("network_ms", "network_ms=", "network_ms=0", "network_ms=nan", "cpu_ms=1", "1.5")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: plan(0, 1), "more than 0 cores"),
        (lambda: plan(4, -1), "more than 0 cores"),
        (lambda: Costs(network_ms=0), "times above 0"),
        *((partial(Costs.read, text), "no NAME=MILLISECONDS") for text in NO_COSTS),
        *((partial(Settings, _env_file=None, costs=text), "no NAME=MILLISECONDS") for text in NO_COSTS),
    ],
)
def test_impossible_machine_or_cost_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_plan_is_reduced_in_proportion_until_it_fits():
    whole = plan(64, 0)
    found = fitting_plan(64, 0, None, lambda each: each.memory_bytes <= whole.memory_bytes / 4)
    assert found.memory_bytes <= whole.memory_bytes / 4
    assert fitting_plan(64, 0, None, lambda each: each.cores <= found.cores + 1).memory_bytes > whole.memory_bytes / 4
    assert found.networks < whole.networks
    assert found.preprocessors < whole.preprocessors
    assert f"{found.cores:g} of 64 cores, since memory allows no more" in found.explained()[0]
    # A plan that never fits becomes the plan for one core.
    assert fitting_plan(4, 0, None, lambda _: False).cores == 1
    assert fitting_plan(0.5, 0, None, lambda _: False).cores == 0.5


def test_explanation_has_a_line_for_each_stage():
    first, *stages = plan(16, 1).explained()
    assert first.startswith("sized for 16 cores, 1 GPU: about 4,571 images/s, limited by all cores together")
    assert [line.partition(":")[0] for line in stages] == ["gateway", "preprocessor", "network"]
    assert stages[1] == "preprocessor: 9 instances, 1.8 ms of a core for an image, up to 5,000 images/s"
    assert stages[2] == "network: 2 on 1 GPU, whose time was not measured"


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(golden(), indent=2) + "\n")
