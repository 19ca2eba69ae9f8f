"""The processes of models are found by their command lines."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.settings import MIB
from gateway_local.model_processes import KIB, STUB, ModelProcess, model_processes
from tests.triton_images import LOADER


def process(proc: Path, pid: int, *arguments: str, rss=0, peak=0, files=0) -> None:
    """Write the files of a process; memory in KiB."""
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "cmdline").write_text("\0".join(arguments) + "\0")
    lines = [f"VmHWM:\t{peak} kB", f"VmRSS:\t{rss} kB", f"RssFile:\t{files} kB"]
    (folder / "status").write_text("\n".join(lines) + "\n")


def test_processes_are_the_children_that_run_a_model(tmp_path):
    proc, models = tmp_path / "proc", tmp_path / "models"
    stub = f"/opt/{STUB}"
    process(proc, 10, stub, f"{models}/net/1/model.py", rss=100, peak=150, files=40)
    process(proc, 11, "/bin/sh", f"{models}/net/1/model.py", rss=900)
    process(proc, 12, stub, f"{models}/net/1/model.py")
    (proc / "12" / "status").unlink()  # it ends
    process(proc, 14, stub, f"{models}/other/1/model.py", rss=900)  # of another Triton
    for task, pids in (("1", "10 11 12 13"), ("2", "")):
        children = proc / "1" / "task" / task / "children"
        children.parent.mkdir(parents=True)
        children.write_text(pids)
    assert list(model_processes(1, proc)) == [ModelProcess(models / "net", 60 * KIB, 110 * KIB)]
    assert not list(model_processes(2, proc))


@pytest.mark.parametrize("start", [[], [LOADER, "--library-path", "/nowhere"]], ids=["", "by a loader"])
def test_processes_of_a_server_are_measured(tmp_path, start):
    """A server of the same shape as Triton's: its stubs name the model's file in their first argument."""
    if start and not Path(LOADER).exists():
        pytest.skip(f"this machine has no {LOADER}")
    stub = tmp_path / STUB
    stub.symlink_to(sys.executable)
    script = "import time; held = bytearray(50 * 2**20); print('ready', flush=True); time.sleep(60)"
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.py").write_text(script)
    command = [*start, stub, tmp_path / "m" / "1" / "model.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        (found,) = (each for each in model_processes(os.getpid()) if each.folder == tmp_path / "m")
        server.kill()
    assert 50 * MIB < found.own_bytes <= found.peak_bytes < 150 * MIB
