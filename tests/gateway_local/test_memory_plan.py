"""Memory in the plan of `gateway up`, before it starts Triton: whether the models fit, and the reported plan."""

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.findings import Level
from gateway.limits.buffers import LEAST, needed
from gateway.machine import capacity
from gateway.machine.memory import MACHINE, Memory
from gateway.settings import GIB, MIB
from gateway.triton.configs import read_model_configs
from gateway.triton.footprint import need
from gateway_local import memory_plan
from gateway_local.memory_plan import NEAR, MemoryShort, fit, models_to_start, plan_start, sized_configs
from tests.gateway.triton.test_footprint import ONNX, model
from tests.settings import Settings


def settings(**fields: object) -> Settings:
    return Settings(_env_file=None, **fields)


def free(nbytes: int) -> Memory:
    return Memory(nbytes, nbytes, MACHINE)


def planned(repository: Path, nbytes: int, **fields: object) -> tuple[memory_plan.StartPlan, list[str]]:
    """The plan of a start with some free memory, and the reported lines."""
    said: list[str] = []
    chosen = settings(**{"cores": 2, **fields})
    return plan_start(chosen, repository, said.append, gpus=0, memory=lambda: free(nbytes)), said


def counts(repository: Path, plan: memory_plan.StartPlan) -> dict[str, list[int]]:
    configs = sized_configs(repository, plan.sizes)
    return {name: [group.count for group in configs[name].instance_group] for name in ("classifier", "preprocessor")}


def warned(said: list[str]) -> bool:
    return any(line.startswith("warning: memory may run out") for line in said)


def test_two_cores_with_memory_keep_every_default_and_sixteen_get_the_settings_of_the_plan(repository):
    plan, said = planned(repository, 64 * GIB)
    assert plan.settings == settings(cores=2)
    assert said == plan.sizes.explained()[:1]
    assert counts(repository, plan) == {"classifier": [2], "preprocessor": [2]}
    plan, _ = planned(repository, 256 * GIB, cores=16)
    assert plan.sizes == replace(capacity.plan(16, 0), all_cores=16)
    assert plan.changed == capacity.plan(16, 0).settings()
    assert plan.settings.workers == 2


@pytest.mark.parametrize(
    ("nbytes", "fields"),
    [
        (256 * GIB, {"cores": 16, "workers": 1, "max_images_in_flight": 40}),
        (GIB, {"max_bytes_waiting": 100 * MIB}),
    ],
    ids=["over the plan", "over what fits the memory"],
)
def test_settings_that_are_set_win(repository, nbytes, fields):
    plan, _ = planned(repository, nbytes, **fields)
    assert {name: getattr(plan.settings, name) for name in fields} == fields
    assert not fields.keys() & plan.changed.keys()


def test_little_memory_runs_one_process_for_each_step(repository):
    plan, said = planned(repository, 650 * MIB)
    assert counts(repository, plan) == {"classifier": [1], "preprocessor": [1]}
    assert LEAST.items() <= plan.changed.items()
    assert plan.settings.max_bytes_waiting == LEAST["max_bytes_waiting"]
    assert said[0].startswith("sized for 1 of 2 cores, since memory allows no more, and no GPU")
    assert any("max_bytes_waiting=32 MiB" in line for line in said)
    alone = {"gpus": 0, "with_gateway": False, "memory": lambda: free(GIB)}
    assert plan_start(settings(), repository, [].append, **alone).changed == {}


@pytest.mark.parametrize("gib", [2, 4, 8, 16, 64])
def test_chosen_counts_never_need_more_than_the_memory(repository, gib):
    plan, _ = planned(repository, gib * GIB, cores=64)
    wanted = need(repository, sized_configs(repository, plan.sizes))
    assert wanted.usual_bytes + needed(plan.settings.model_copy(update=LEAST)) <= gib * GIB
    more = capacity.plan(min(64, plan.sizes.cores + 1), 0)
    larger = need(repository, sized_configs(repository, more))
    gateway = needed(plan.settings.model_copy(update={**LEAST, "workers": more.workers}))
    # One core more would not fit, if there is one.
    assert plan.sizes.cores == 64 or larger.usual_bytes + gateway + LEAST["triton_cache_bytes"] > gib * GIB


def test_models_that_cannot_fit_are_refused_with_a_way_out(repository):
    """Models are not refused where the free memory is unknown. A count in config.pbtxt is kept."""
    path = repository / "classifier" / "config.pbtxt"
    path.write_text(path.read_text().replace("KIND_AUTO", "KIND_AUTO count: 3"))
    words = r"(?s)50 MiB are free.*the models take.*classifier +3 × .* estimated.*--instances 1.*ONNX Runtime in place"
    with pytest.raises(MemoryShort, match=words):
        planned(repository, 50 * MIB)
    assert plan_start(settings(cores=2), repository, [].append, gpus=0, memory=lambda: None).sizes.cores == 2


def test_costs_that_were_measured_change_the_counts(repository):
    light = capacity.Costs(network_ms=2.6)
    plan, _ = planned(repository, 64 * GIB, cores=16, costs=light.text)
    assert plan.sizes.preprocessors == capacity.plan(16, 0, light).preprocessors != capacity.plan(16, 0).preprocessors


def test_stateful_models_wait_for_the_first_stream(repository):
    assert "sequence_model" in (configs := read_model_configs(repository))
    assert set(models_to_start(settings(), configs, repository)) == configs.keys() - {"sequence_model"}
    (repository / "damaged").mkdir()
    assert models_to_start(settings(), configs, repository) == ("*",)  # so that Triton reports the fault


def test_models_on_demand_need_their_budget(repository):
    """Triton starts with the models that stay, and the rest of the budget is for the others."""
    configs = read_model_configs(repository)
    on_demand = {"models_memory_bytes": 4 * GIB}
    chosen = settings(**on_demand, load_models=("flowers",))
    assert models_to_start(chosen, configs, repository) == ("ensemble_model", "flowers")
    _, said = planned(repository, 64 * GIB, **on_demand)
    assert not warned(said)
    _, said = planned(repository, 4 * GIB, **on_demand)
    assert warned(said)


def test_fit_at_its_limits(tmp_path):
    model(tmp_path, "m", ONNX)
    wanted = need(tmp_path, read_model_configs(tmp_path))
    assert fit(wanted, free(wanted.least_bytes - 1), beside_bytes=0).level is Level.FAIL
    assert fit(wanted, free(wanted.least_bytes), beside_bytes=0).level is Level.WARN
    enough = int((wanted.usual_bytes + MIB) / NEAR) + 1
    assert fit(wanted, free(enough), beside_bytes=MIB).level is Level.OK
    assert fit(wanted, free(enough - 2), beside_bytes=MIB).level is Level.WARN
