"""What an image costs here is measured by a run of the whole service; and which processes run models."""

import os
import subprocess
import sys
from pathlib import Path

import cv2
import httpx
import numpy as np
import pytest

from gateway.settings import MIB
from gateway_local.config_text import parse
from gateway_local.cost_record import (
    BATCHES,
    WARM_UP_BATCHES,
    NotMeasured,
    batch_milliseconds,
    measure_costs,
    numbered,
    record_costs,
    recorded_costs,
)
from gateway_local.display import Lines
from gateway_local.model_processes import KIB, STUB, ModelProcess, model_processes
from gateway_machine.capacity import GPU_BATCH
from tests.processes import PROJECT
from tests.settings import Settings

SAMPLE = (PROJECT / "examples" / "cat.jpg").read_bytes()


def test_numbered_jpegs_differ_and_have_the_same_pixels():
    one, two = numbered(SAMPLE, 1), numbered(SAMPLE, 2)
    assert one != two
    pixels = [cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) for data in (SAMPLE, one, two)]
    assert (pixels[0] == pixels[1]).all()
    assert (pixels[0] == pixels[2]).all()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"api_keys_file": Path("keys")}, "unset GATEWAY_API_KEYS_FILE"), ({"model": "other"}, "no ensemble 'other'")],
)
def test_what_cannot_be_measured_is_refused(model_repository, runtime, fields, reason, monkeypatch):
    monkeypatch.setenv("GATEWAY_LOG_LEVEL", "error")
    display = Lines(print, print)
    with pytest.raises(NotMeasured, match=reason):
        measure_costs(Settings(_env_file=None, **fields), model_repository, runtime, SAMPLE, display)


@pytest.mark.long
def test_costs_of_each_stage_are_measured_and_kept(light_repository, runtime, tmp_path, monkeypatch):
    monkeypatch.setenv("GATEWAY_LOG_LEVEL", "error")
    display = Lines(print, lambda _: None)
    costs, network = measure_costs(Settings(_env_file=None), light_repository, runtime, SAMPLE, display)
    assert network == light_repository / "classifier"
    found = (costs.gateway_ms, costs.triton_ms, costs.preprocessor_ms, costs.network_ms)
    assert all(0.01 < each < 1_000 for each in found)
    # The network computes nothing.
    assert costs.network_ms < costs.preprocessor_ms + costs.gateway_ms
    record_costs(costs, network, tmp_path)
    assert recorded_costs(light_repository, tmp_path) == costs


def test_time_of_a_batch_is_that_of_tritons_statistics(light_triton, light_repository):
    """The way in which a network's time on a GPU is measured, with a network on the CPU."""
    config = parse((light_repository / "classifier" / "config.pbtxt").read_text())
    milliseconds = batch_milliseconds(light_triton.http_url, "classifier", config)
    assert 0 < milliseconds < 100
    statistics = httpx.get(f"{light_triton.http_url}/v2/models/classifier/stats", timeout=60).json()["model_stats"][0]
    (of_size,) = [each for each in statistics["batch_stats"] if each["batch_size"] == GPU_BATCH]
    assert of_size["compute_infer"]["count"] == WARM_UP_BATCHES + BATCHES
    with pytest.raises(NotMeasured, match="other"):
        batch_milliseconds(light_triton.http_url, "other", config)


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


def test_processes_of_a_server_are_measured(tmp_path):
    """A server of the same shape as Triton's: its stubs name the model's file in their first argument."""
    stub = tmp_path / STUB
    stub.symlink_to(sys.executable)
    script = "import time; held = bytearray(50 * 2**20); print('ready', flush=True); time.sleep(60)"
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.py").write_text(script)
    command = [stub, tmp_path / "m" / "1" / "model.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        (found,) = (each for each in model_processes(os.getpid()) if each.folder == tmp_path / "m")
        server.kill()
    assert 50 * MIB < found.own_bytes <= found.peak_bytes < 150 * MIB
