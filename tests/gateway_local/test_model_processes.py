"""The processes of a service, as /proc has them."""

import os
import subprocess
import sys
from pathlib import Path

from gateway.settings import MIB
from gateway_local.model_processes import KIB, STUB, TICKS, ServiceProcess, processes


def process(proc: Path, pid: int, *arguments: str, session=1, ticks=0, rss=0, peak=0, files=0) -> None:
    """Write the files of a process; memory in KiB."""
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} (a (b) c) S 1 1 {session} 0 0 0 0 0 0 0 {ticks} {ticks} 0\n")
    (folder / "cmdline").write_text("\0".join(arguments) + "\0")
    lines = [f"VmHWM:\t{peak} kB", f"VmRSS:\t{rss} kB", f"RssFile:\t{files} kB"]
    (folder / "status").write_text("\n".join(lines) + "\n")


def test_processes_are_those_of_the_session_with_the_model_that_they_run(tmp_path):
    proc, models = tmp_path / "proc", tmp_path / "models"
    process(proc, 10, f"/opt/{STUB}", f"{models}/net/1/model.py", ticks=TICKS, rss=100, peak=150, files=40)
    process(proc, 11, "/bin/tritonserver", rss=70, peak=50)
    process(proc, 12, f"/opt/{STUB}", f"{models}/net/1/model.py")
    (proc / "12" / "status").unlink()  # it ends
    process(proc, 14, f"/opt/{STUB}", f"{models}/other/1/model.py", session=2)  # of another Triton
    assert set(processes(1, proc)) == {
        ServiceProcess(10, models / "net", 2.0, 60 * KIB, 110 * KIB),
        ServiceProcess(11, None, 0.0, 70 * KIB, 70 * KIB),
    }


def test_process_of_a_model_is_measured(tmp_path):
    """The stub of a model names the model's file in its first argument."""
    stub = tmp_path / STUB
    stub.symlink_to(sys.executable)
    script = "import time; held = bytearray(50 * 2**20); print('ready', flush=True); time.sleep(60)"
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.py").write_text(script)
    command = [stub, tmp_path / "m" / "1" / "model.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        (found,) = processes(server.pid)
        server.kill()
    assert found.model == tmp_path / "m"
    assert 50 * MIB < found.own_bytes <= found.peak_bytes < 150 * MIB
    assert not [each for each in processes(os.getpid()) if each.model]
