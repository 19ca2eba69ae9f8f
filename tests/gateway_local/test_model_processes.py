"""The processes of a service, as /proc has them."""

import os
import subprocess
import sys

from gateway.settings import MIB
from gateway_local.model_processes import STUB, processes


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
