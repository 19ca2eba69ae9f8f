"""The memory of a machine and of its control groups."""

from pathlib import Path

import pytest

from gateway_machine.memory import MACHINE, Memory, killed_for_memory, memory_limit, usable_memory

MIB = 2**20
MEMINFO = f"MemTotal: {8000 * 1024} kB\nMemFree: 5 kB\nMemAvailable: {6000 * 1024} kB\n"
UNLIMITED = 9223372036854771712


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, Path]:
    """A machine of 8,000 MiB, whose process is in the group /box of a version that each test chooses."""
    (tmp_path / "meminfo").write_text(MEMINFO)
    (tmp_path / "own").write_text("0::/box\n")
    return {"cgroups": tmp_path / "cgroup", "own": tmp_path / "own", "meminfo": tmp_path / "meminfo"}


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("memory_", "memory.", 1)).write_text(f"{text}\n")


def test_memory_is_the_machines_without_control_groups(machine):
    assert usable_memory(**machine) == Memory(8000 * MIB, 6000 * MIB, MACHINE)
    assert memory_limit(**machine) == 8000 * MIB


def test_memory_is_unknown_without_any_files(tmp_path):
    missing = {name: tmp_path / name for name in ("cgroups", "own", "meminfo")}
    assert usable_memory(**missing) is None
    assert memory_limit(**missing) is None
    assert killed_for_memory(missing["cgroups"], missing["own"]) == 0


def test_version_2_limit_counts_without_reclaimable_caches(machine):
    box = machine["cgroups"] / "box"
    stat = f"anon 5\ninactive_file {200 * MIB}\nactive_file {100 * MIB}"
    group(box, memory_max=str(1000 * MIB), memory_current=str(700 * MIB), memory_stat=stat)
    assert usable_memory(**machine) == Memory(1000 * MIB, 600 * MIB, str(box / "memory.max"))


def test_version_1_limit_counts_without_reclaimable_caches(machine):
    machine["own"].write_text("5:cpu,cpuacct:/other\n4:memory:/box\n0::/\n")
    box = machine["cgroups"] / "memory" / "box"
    stat = f"cache 9\ntotal_inactive_file {200 * MIB}\ntotal_active_file 0"
    group(
        box,
        memory_limit_in_bytes=str(1000 * MIB),
        memory_usage_in_bytes=str(700 * MIB),
        memory_stat=stat,
    )
    assert usable_memory(**machine) == Memory(1000 * MIB, 500 * MIB, str(box / "memory.limit_in_bytes"))


def test_limit_of_a_parent_group_counts(machine):
    group(machine["cgroups"] / "box", memory_max="max", memory_current="5")
    group(machine["cgroups"], memory_max=str(500 * MIB), memory_current=str(100 * MIB))
    assert usable_memory(**machine).free_bytes == 400 * MIB


@pytest.mark.parametrize(("limit", "name"), [("max", "memory_max"), (str(UNLIMITED), "memory_limit_in_bytes")])
def test_group_without_a_limit_leaves_the_machine(machine, limit, name):
    machine["own"].write_text("0::/box\n4:memory:/box\n")
    group(machine["cgroups"] / "box", memory_current="5", **{name: limit})
    group(machine["cgroups"] / "memory" / "box", memory_usage_in_bytes="5", **{name: limit})
    assert usable_memory(**machine) == Memory(8000 * MIB, 6000 * MIB, MACHINE)


def test_more_use_than_the_limit_leaves_nothing_free(machine):
    group(machine["cgroups"] / "box", memory_max="100", memory_current="200")
    assert usable_memory(**machine).free_bytes == 0


def test_limit_is_the_least_of_all(machine):
    group(machine["cgroups"] / "box", memory_max=str(7000 * MIB), memory_current="0")
    assert memory_limit(**machine) == 7000 * MIB


@pytest.mark.parametrize(("file", "text"), [("events", "low 0\noom 4\noom_kill 3"), ("oom_control", "oom_kill 3")])
def test_processes_that_the_kernel_killed_are_counted(machine, file, text):
    machine["own"].write_text("0::/box\n4:memory:/box\n")
    for folder in (machine["cgroups"] / "box", machine["cgroups"] / "memory" / "box"):
        group(folder, **{f"memory_{file}": text})
    assert killed_for_memory(machine["cgroups"], machine["own"]) == 3
