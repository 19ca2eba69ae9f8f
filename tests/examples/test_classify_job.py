"""The Job for Kubernetes: valid, and its pods' command, run as processes, classifies each image once."""

import os
import subprocess
import sysconfig

import pyarrow.parquet
import pytest
import yaml

from tests.deploy.kubernetes_schemas import VERSIONS, faults
from tests.doubles.backend import PNG
from tests.gateway_client.bulk.running import folder_of
from tests.processes import PROJECT, environment
from tests.services import stub_service

JOB = yaml.safe_load((PROJECT / "examples" / "classify-job.yaml").read_text())
SHARDS = 4


@pytest.mark.parametrize("version", VERSIONS)
def test_job_matches_the_schemas(version):
    assert faults(JOB, version) == []


def test_job_has_as_many_pods_as_shards():
    (container,) = JOB["spec"]["template"]["spec"]["containers"]
    assert container["env"] == [{"name": "SHARDS", "value": str(JOB["spec"]["completions"])}]


@pytest.mark.slow
def test_pods_divide_the_images(tmp_path):
    photos, out = folder_of(tmp_path / "photos", 400, PNG), tmp_path / "out"
    (photos / "bad.png").write_bytes(b"text")  # its pod exits with 3, and is done
    (container,) = JOB["spec"]["template"]["spec"]["containers"]
    with stub_service() as url:
        given = {"IMAGES": str(photos), "OUTPUT": f"{out}/", "GATEWAY": url, "SHARDS": str(SHARDS)}
        path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
        pods = [
            subprocess.Popen(
                [*container["command"], *container["args"]],
                env={**environment(), **given, "PATH": path, "JOB_COMPLETION_INDEX": str(index)},
                stderr=subprocess.PIPE,
                text=True,
            )
            for index in range(SHARDS)
        ]
        errors = [pod.communicate(timeout=240)[1] for pod in pods]
    assert [pod.returncode for pod in pods] == [0] * SHARDS, errors
    rows = [row for file in out.glob("*.parquet") for row in pyarrow.parquet.read_table(file).to_pylist()]
    assert sorted(row["path"] for row in rows) == sorted(map(str, photos.rglob("*.png")))
    assert [row["error"] for row in rows if row["error"]] == ["unsupported_format"]
