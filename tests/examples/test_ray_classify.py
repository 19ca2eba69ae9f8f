"""The example for Ray Data, on a local Ray; Ray is only in the extra `ray`, since it takes minutes to install."""

import subprocess
import sys

import pyarrow
import pyarrow.parquet
import pytest

from tests.gateway.api.stub import PNG
from tests.gateway_client.bulk.running import folder_of
from tests.processes import PROJECT, environment
from tests.stub_service import stub_service

pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")


def test_parquet_in_parquet_out(tmp_path):
    photos = sorted(folder_of(tmp_path / "photos", 120, PNG).rglob("*.png"))
    (tmp_path / "photos" / "bad.png").write_bytes(b"text")
    paths = [*map(str, photos), str(tmp_path / "photos" / "bad.png")]
    pyarrow.parquet.write_table(pyarrow.table({"path": paths}), tmp_path / "in.parquet")
    script = PROJECT / "examples" / "ray_classify.py"
    with stub_service() as url:
        command = [sys.executable, script, tmp_path / "in.parquet", tmp_path / "out", "--url", url, "--batch", "50"]
        run = subprocess.run(
            command,
            cwd=PROJECT,
            env={**environment(), "PYTHONPATH": str(PROJECT)},
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )
    assert run.returncode == 0, run.stderr
    rows = pyarrow.parquet.read_table(tmp_path / "out").to_pylist()
    assert sorted(row["path"] for row in rows) == sorted(paths)
    assert sum(row["label"] == "cat" for row in rows) == 120
    assert [row["error"] for row in rows if row["error"]] == ["unsupported_format"]
