"""What the machine has: cores and GPUs."""

import os

import pytest

from gateway_machine.cores import usable_cores
from gateway_machine.gpus import Gpus, gpu_count, read_torch_cuda


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
def test_hyper_threads_of_a_core_count_once(machine, cpus, threads, cores):
    assert usable_cores(**machine(cpus, threads)) == cores


def test_machine_without_a_topology_counts_its_cpus(machine, tmp_path):
    assert usable_cores(**{**machine(4, 2), "cpus": tmp_path / "none"}) == 4


@pytest.mark.parametrize(("quota", "cores"), [("150000 100000", 1.5), ("max 100000", 4), ("900000 100000", 4)])
def test_quota_of_the_control_group_is_a_limit(machine, tmp_path, quota, cores):
    places = machine(8, 2)
    (tmp_path / "groups").mkdir()
    (tmp_path / "groups" / "cpu.max").write_text(quota)
    assert usable_cores(**places) == cores


OLD_DRIVER = (
    "torch is built for CUDA 13.0, which needs driver R580 or newer, and the driver here runs CUDA 12.4 at most; "
    "update the driver, or install a torch for CUDA 12"
)


@pytest.mark.parametrize(
    ("gpus", "usable", "why_not"),
    [
        (Gpus(2, (13, 1), (13, 0)), 2, ""),
        (Gpus(0), 0, ""),
        (Gpus(1, (12, 4), (13, 0), torch_sees_them=False), 0, OLD_DRIVER),
        (Gpus(1, (13, 0), None, torch_sees_them=False), 0, "built without CUDA"),
        (Gpus(1, (13, 0), (13, 0), torch_sees_them=False), 0, "torch.cuda.init()"),
    ],
)
def test_gpu_that_torch_does_not_see_has_a_reason(gpus, usable, why_not):
    assert gpus.usable == usable
    assert why_not in gpus.why_not
    assert bool(gpus.why_not) == bool(why_not)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("__version__ = '2.15.0'\ncuda: Optional[str] = '13.0'\nhip = None\n", (13, 0)),
        ("cuda = '12.8'\n", (12, 8)),
        ("__version__ = '2.15.0+cpu'\ncuda: Optional[str] = None\n", None),
        ("", None),
    ],
)
def test_cuda_version_is_read_from_the_version_file_of_torch(text, version):
    assert read_torch_cuda(text) == version


def test_counting_gpus_needs_no_driver():
    assert gpu_count() >= 0
