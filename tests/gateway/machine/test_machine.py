"""Cores and memory of the machine and its control groups."""

import os
from pathlib import Path

import pytest

from gateway.machine.cores import usable_cores
from gateway.machine.memory import MACHINE, Memory, killed_for_memory, memory_limit, usable_memory


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with `cpus` CPUs, `threads` for each core, and without control groups."""

    def made(cpus: int, threads: int) -> dict:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cpus)))
        for cpu in range(cpus):
            folder = tmp_path / "cpu" / f"cpu{cpu}" / "topology"
            folder.mkdir(parents=True)
            first = cpu - cpu % threads
            (folder / "thread_siblings_list").write_text(f"{first}-{first + threads - 1}\n")
        (tmp_path / "own").write_text("0::/\n")
        return {"cgroups": tmp_path / "groups", "own": tmp_path / "own", "cpus": tmp_path / "cpu"}

    return made


@pytest.mark.parametrize(("cpus", "threads", "cores"), [(4, 1, 4), (8, 2, 4), (7, 2, 4)])
def test_hyper_threads_of_a_core_count_once(machine, tmp_path, cpus, threads, cores):
    """A machine without a topology counts its CPUs."""
    places = machine(cpus, threads)
    assert usable_cores(**places) == cores
    assert usable_cores(**{**places, "cpus": tmp_path / "none"}) == cpus


@pytest.mark.parametrize(("quota", "cores"), [("150000 100000", 1.5), ("max 100000", 4), ("900000 100000", 4)])
def test_quota_of_the_control_group_is_a_limit(machine, tmp_path, quota, cores):
    places = machine(8, 2)
    (tmp_path / "groups").mkdir()
    (tmp_path / "groups" / "cpu.max").write_text(quota)
    assert usable_cores(**places) == cores


MIB = 2**20
MEMINFO = f"MemTotal: {8000 * 1024} kB\nMemFree: 5 kB\nMemAvailable: {6000 * 1024} kB\n"
UNLIMITED = 9223372036854771712


@pytest.fixture
def memory_files(tmp_path: Path) -> dict[str, Path]:
    """A machine of 8,000 MiB, whose process is in the group /box of a version that each test chooses."""
    (tmp_path / "meminfo").write_text(MEMINFO)
    (tmp_path / "own").write_text("0::/box\n")
    return {"cgroups": tmp_path / "cgroup", "own": tmp_path / "own", "meminfo": tmp_path / "meminfo"}


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("memory_", "memory.", 1)).write_text(f"{text}\n")


def test_memory_is_the_machines_without_control_groups(memory_files):
    assert usable_memory(**memory_files) == Memory(8000 * MIB, 6000 * MIB, MACHINE)
    assert memory_limit(**memory_files) == 8000 * MIB


def test_memory_is_unknown_without_any_files(tmp_path):
    missing = {name: tmp_path / name for name in ("cgroups", "own", "meminfo")}
    assert usable_memory(**missing) is None
    assert memory_limit(**missing) is None
    assert killed_for_memory(missing["cgroups"], missing["own"]) == 0


def test_version_2_limit_counts_without_reclaimable_caches(memory_files):
    box = memory_files["cgroups"] / "box"
    stat = f"anon 5\ninactive_file {200 * MIB}\nactive_file {100 * MIB}"
    group(box, memory_max=str(1000 * MIB), memory_current=str(700 * MIB), memory_stat=stat)
    assert usable_memory(**memory_files) == Memory(1000 * MIB, 600 * MIB, str(box / "memory.max"))
    assert memory_limit(**memory_files) == 1000 * MIB


def test_version_1_limit_counts_without_reclaimable_caches(memory_files):
    memory_files["own"].write_text("5:cpu,cpuacct:/other\n4:memory:/box\n0::/\n")
    box = memory_files["cgroups"] / "memory" / "box"
    stat = f"cache 9\ntotal_inactive_file {200 * MIB}\ntotal_active_file 0"
    used = {"memory_limit_in_bytes": str(1000 * MIB), "memory_usage_in_bytes": str(700 * MIB)}
    group(box, memory_stat=stat, **used)
    assert usable_memory(**memory_files) == Memory(1000 * MIB, 500 * MIB, str(box / "memory.limit_in_bytes"))


def test_limit_of_a_parent_group_counts_and_more_use_leaves_nothing_free(memory_files):
    group(memory_files["cgroups"] / "box", memory_max="max", memory_current="5")
    group(memory_files["cgroups"], memory_max=str(500 * MIB), memory_current=str(100 * MIB))
    assert usable_memory(**memory_files).free_bytes == 400 * MIB
    group(memory_files["cgroups"] / "box", memory_max="100", memory_current="200")
    assert usable_memory(**memory_files).free_bytes == 0


@pytest.mark.parametrize(("limit", "name"), [("max", "memory_max"), (str(UNLIMITED), "memory_limit_in_bytes")])
def test_group_without_a_limit_leaves_the_machine(memory_files, limit, name):
    memory_files["own"].write_text("0::/box\n4:memory:/box\n")
    group(memory_files["cgroups"] / "box", memory_current="5", **{name: limit})
    group(memory_files["cgroups"] / "memory" / "box", memory_usage_in_bytes="5", **{name: limit})
    assert usable_memory(**memory_files) == Memory(8000 * MIB, 6000 * MIB, MACHINE)


@pytest.mark.parametrize(("file", "text"), [("events", "low 0\noom 4\noom_kill 3"), ("oom_control", "oom_kill 3")])
def test_processes_that_the_kernel_killed_are_counted(memory_files, file, text):
    memory_files["own"].write_text("0::/box\n4:memory:/box\n")
    for folder in (memory_files["cgroups"] / "box", memory_files["cgroups"] / "memory" / "box"):
        group(folder, **{f"memory_{file}": text})
    assert killed_for_memory(memory_files["cgroups"], memory_files["own"]) == 3
