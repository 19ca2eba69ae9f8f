"""What `gateway up` does about memory before it starts Triton."""

import shutil
from pathlib import Path

import pytest

from gateway.buffers import LEAST
from gateway.memory import MACHINE, Memory
from gateway.settings import GIB, MIB, MemoryCheck, Settings
from gateway.triton.model_config import read_model_config, read_model_configs
from gateway_local import memory_plan
from gateway_local.memory_fit import MemoryShort
from gateway_local.memory_plan import LEAN, SHIPPED_COUNT, count_for_new_model, plan_memory, warn_of_memory
from gateway_local.paths import SHIPPED_MODELS


@pytest.fixture(autouse=True)
def _nothing_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The shipped models without their weights."""
    return Path(
        shutil.copytree(SHIPPED_MODELS, tmp_path / "models", ignore=shutil.ignore_patterns("model.*", "configs"))
    )


def settings(**fields: object) -> Settings:
    return Settings(_env_file=None, **fields)


def free(nbytes: int) -> Memory:
    return Memory(nbytes, nbytes, MACHINE)


def planned(repository: Path, nbytes: int, said: list[str], **fields: object) -> memory_plan.MemoryPlan:
    return plan_memory(settings(**fields), repository, said.append, gpus=0, memory=lambda: free(nbytes))


def test_large_machine_changes_nothing(repository):
    said: list[str] = []
    plan = planned(repository, 64 * GIB, said)
    assert (plan.settings, plan.lowered, plan.arguments, said) == (settings(), {}, (), [])
    assert not (repository / "classifier" / "configs").exists()


def test_one_gibibyte_runs_one_process_for_each_step(repository):
    """Triton reads configs/lean.pbtxt in place of config.pbtxt, which stays as it is."""
    said: list[str] = []
    before = (repository / "classifier" / "config.pbtxt").read_text()
    plan = planned(repository, GIB, said)
    assert plan.arguments == (f"--model-config-name={LEAN}",)
    for name in ("classifier", "preprocessor"):
        lean = read_model_config(repository / name / "configs" / f"{LEAN}.pbtxt")
        config = read_model_configs(repository)[name]
        assert [group.count for group in lean.instance_group] == [1]
        lean.instance_group[0].count = SHIPPED_COUNT
        assert lean == config
    assert (repository / "classifier" / "config.pbtxt").read_text() == before
    assert plan.lowered == LEAST
    assert plan.settings.max_bytes_waiting == LEAST["max_bytes_waiting"]
    assert any("one process each instead of 2" in line for line in said)
    assert any("GATEWAY_MAX_BYTES_WAITING=32 MiB" in line for line in said)


def test_configured_counts_are_kept(repository):
    path = repository / "classifier" / "config.pbtxt"
    path.write_text(path.read_text().replace("KIND_AUTO count: 2", "KIND_AUTO count: 3"))
    said: list[str] = []
    assert planned(repository, 2 * GIB, said).arguments == ()
    assert any(line.startswith("warning: memory may run out") for line in said)


def test_read_only_repository_keeps_its_counts(repository, monkeypatch):
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: (_ for _ in ()).throw(PermissionError()))
    assert planned(repository, GIB, [], memory_check=MemoryCheck.WARN).arguments == ()


def test_explicit_settings_stay_as_they_are(repository):
    plan = planned(repository, GIB, [], max_bytes_waiting=100 * MIB)
    assert plan.settings.max_bytes_waiting == 100 * MIB
    assert "max_bytes_waiting" not in plan.lowered


def test_models_that_cannot_fit_are_refused(repository):
    with pytest.raises(MemoryShort, match=r"(?s)50 MiB are free.*classifier.*GATEWAY_MEMORY_CHECK=warn"):
        planned(repository, 50 * MIB, [])
    said: list[str] = []
    planned(repository, 50 * MIB, said, memory_check=MemoryCheck.WARN)
    assert any(line.startswith("warning: memory may run out") for line in said)


def test_check_can_be_switched_off(repository):
    said: list[str] = []
    plan = planned(repository, 50 * MIB, said, memory_check=MemoryCheck.OFF)
    assert (plan.lowered, plan.arguments, said) == ({}, (), [])


def test_triton_alone_leaves_the_gateway_settings(repository):
    plan = plan_memory(settings(), repository, [].append, gpus=0, with_gateway=False, memory=lambda: free(GIB))
    assert plan.lowered == {}


@pytest.mark.parametrize(("limit", "gpus", "count"), [(64 * GIB, 0, 2), (2 * GIB, 0, 1), (2 * GIB, 1, 2)])
def test_new_model_gets_as_many_processes_as_memory_allows(repository, monkeypatch, limit, gpus, count):
    monkeypatch.setattr(memory_plan, "memory_limit", lambda: limit)
    monkeypatch.setattr(memory_plan, "usable_cores", lambda: 2.0)
    assert count_for_new_model(repository, "pytorch", gpus=gpus) == count


def test_added_models_that_may_not_fit_are_a_warning(repository, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(memory_plan, "memory_limit", lambda: 64 * GIB)
    warn_of_memory(repository, settings(), said.append, gpus=0)
    assert said == []
    monkeypatch.setattr(memory_plan, "memory_limit", lambda: GIB)
    warn_of_memory(repository, settings(memory_check=MemoryCheck.OFF), said.append, gpus=0)
    assert said == []
    warn_of_memory(repository, settings(), said.append, gpus=0)
    assert said[0].startswith("warning: on a machine with the memory of this one")
