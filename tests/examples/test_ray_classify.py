"""The example for Ray Data, on a local Ray; Ray is only in the extra `ray`, since it takes minutes to install."""

import os
import subprocess
import sys

import pyarrow
import pyarrow.parquet
import pytest

from tests.doubles.backend import PNG
from tests.gateway_client.bulk.running import folder_of
from tests.processes import PROJECT, environment
from tests.services import stub_service

pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")

CORES = len(os.sched_getaffinity(0))


def classify(table, out, *options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, PROJECT / "examples" / "ray_classify.py", table, out, *options]
    variables = {**environment(), "PYTHONPATH": str(PROJECT)}
    return subprocess.run(command, cwd=PROJECT, env=variables, capture_output=True, text=True, check=False, timeout=280)


def written(path, paths):
    pyarrow.parquet.write_table(pyarrow.table({"path": list(map(str, paths))}), path)
    return path


def test_as_many_actors_as_cores_classify_a_table(tmp_path):
    """Actors with a core each would leave none for the task that reads the table."""
    photos = sorted(folder_of(tmp_path / "photos", 120, PNG).rglob("*.png"))
    (bad := tmp_path / "photos" / "bad.png").write_bytes(b"text")
    paths = [*photos[1:], f"file://{photos[0]}", bad]
    table = written(tmp_path / "in.parquet", paths)
    with stub_service() as url:
        run = classify(table, tmp_path / "out", "--gateway", url, "--batch", "50", "--workers", str(CORES))
    assert run.returncode == 0, run.stderr
    rows = pyarrow.parquet.read_table(tmp_path / "out").to_pylist()
    assert sorted(row["path"] for row in rows) == sorted(map(str, paths))
    assert sum(row["label"] == "cat" for row in rows) == 120
    assert [row["error"] for row in rows if row["error"]] == ["unsupported_format"]


def test_actors_that_leave_no_core_are_refused(tmp_path):
    table = written(tmp_path / "in.parquet", ["cat.jpg"])
    run = classify(table, tmp_path / "out", "--workers", str(CORES), "--cpus", "1")
    assert run.returncode == 2
    assert "fewer --workers" in run.stderr


@pytest.mark.slow
def test_an_actor_runs_its_own_service(tmp_path, model_repository):
    table = written(tmp_path / "in.parquet", [PROJECT / "examples" / "cat.jpg"] * 3)
    run = classify(table, tmp_path / "out", "--repository", model_repository, "--workers", "1", "--cpus", "0.5")
    assert run.returncode == 0, run.stderr
    rows = pyarrow.parquet.read_table(tmp_path / "out").to_pylist()
    assert [row["error"] for row in rows] == [""] * 3
    assert all(row["label"] for row in rows)
