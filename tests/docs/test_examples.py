"""docs/examples/: Ray and Spark classify tables, the job of Kubernetes a bucket, and a stream is followed."""

import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow
import pyarrow.parquet
import pytest
import yaml

from docs.examples.spark_classify import classifier
from gateway.plugins.keys.key_file import add_key
from tests.deploy.kubernetes_schemas import VERSIONS, faults
from tests.doubles.backend import PNG, StubBackend, frame, frame_backend
from tests.gateway_client.bulk.running import folder_of
from tests.processes import PROJECT, environment
from tests.services import stream_service, stub_service

JOB = yaml.safe_load((PROJECT / "docs" / "examples" / "classify-job.yaml").read_text())
SHARDS = 4


@pytest.mark.parametrize("version", VERSIONS)
def test_job_matches_the_schemas_and_has_as_many_pods_as_shards(version):
    assert faults(JOB, version) == []
    (container,) = JOB["spec"]["template"]["spec"]["containers"]
    assert container["env"][0] == {"name": "SHARDS", "value": str(JOB["spec"]["completions"])}
    assert container["env"][1]["value"] == container["volumeMounts"][0]["mountPath"]


@pytest.mark.slow
def test_pods_divide_the_images(tmp_path):
    photos, out = folder_of(tmp_path / "photos", 400, PNG), tmp_path / "out"
    (photos / "bad.png").write_bytes(b"text")  # its pod exits with 3, and is done
    (container,) = JOB["spec"]["template"]["spec"]["containers"]
    with stub_service() as url:
        given = {"IMAGES": str(photos), "OUTPUT": str(out), "VERSION": "1", "GATEWAY": url, "SHARDS": str(SHARDS)}
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


needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install -e '.[ray]'")
CORES = len(os.sched_getaffinity(0))


def classify(table, out, *options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, PROJECT / "docs" / "examples" / "ray_classify.py", table, out, *options]
    with TemporaryDirectory(dir="/tmp") as folder:  # Ray leaves files there, with sockets of at most 107 bytes
        return subprocess.run(
            command,
            cwd=PROJECT,
            env={**environment(), "PYTHONPATH": str(PROJECT), "RAY_TMPDIR": folder},
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )


def written(path, paths):
    pyarrow.parquet.write_table(pyarrow.table({"path": list(map(str, paths))}), path)
    return path


@needs_ray
def test_as_many_actors_as_cores_classify_a_table(tmp_path):
    """Actors with a core each would leave none for the task that reads the table."""
    photos = sorted(folder_of(tmp_path / "photos", 120, PNG).rglob("*.png"))
    (bad := tmp_path / "photos" / "bad.png").write_bytes(b"text")
    paths = [*photos[1:], f"file://{photos[0]}", bad]
    table = written(tmp_path / "in.parquet", paths)
    with stub_service() as url:
        run = classify(
            table, tmp_path / "out", "--gateway", url, "--version", "1", "--batch", "50", "--workers", str(CORES)
        )
    assert run.returncode == 0, run.stderr
    rows = pyarrow.parquet.read_table(tmp_path / "out").to_pylist()
    assert sorted(row["path"] for row in rows) == sorted(map(str, paths))
    assert sum(row["label"] == "cat" for row in rows) == 120
    assert [row["error"] for row in rows if row["error"]] == ["unsupported_format"]
    assert len(list((tmp_path / "out").iterdir())) == 3  # batches of one file, which any actor may take


@needs_ray
def test_rows_of_an_earlier_run_are_not_added_to(tmp_path):
    table = written(tmp_path / "in.parquet", folder_of(tmp_path / "photos", 2, PNG).rglob("*.png"))
    with stub_service() as url:
        runs = [classify(table, tmp_path / "out", "--gateway", url, "--workers", "1") for _ in range(2)]
    assert (runs[0].returncode, runs[1].returncode) == (0, 1), runs[0].stderr
    assert "already exists" in runs[1].stderr
    assert len(pyarrow.parquet.read_table(tmp_path / "out").to_pylist()) == 2


@needs_ray
def test_actors_that_leave_no_core_are_refused(tmp_path):
    table = written(tmp_path / "in.parquet", ["cat.jpg"])
    run = classify(table, tmp_path / "out", "--workers", str(CORES), "--cpus", "1")
    assert run.returncode == 2
    assert "fewer --workers" in run.stderr


def test_batches_get_their_classes(tmp_path):
    paths = [str(path) for path in sorted(folder_of(tmp_path / "photos", 5, PNG).rglob("*.png"))]
    (bad := tmp_path / "bad.png").write_bytes(b"text")
    batches = [
        pyarrow.RecordBatch.from_pydict({"path": [*paths[:2], str(bad)], "id": [1, 2, 3]}),
        pyarrow.RecordBatch.from_pydict({"path": paths[2:], "id": [4, 5, 6]}),
    ]
    with stub_service() as url:
        rows = [row for batch in classifier(url, None, None, "1")(iter(batches)) for row in batch.to_pylist()]
    assert [row["path"] for row in rows] == [*paths[:2], str(bad), *paths[2:]]
    assert [row["id"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["label"] for row in rows] == ["cat", "cat", None, "cat", "cat", "cat"]
    assert [row["error"] for row in rows if row["error"]] == ["unsupported_format"]
    assert {row["version"] for row in rows} == {"1"}
    backend = StubBackend()
    with stub_service(backend) as url:
        list(classifier(url, None, None, "7")(iter(batches)))
    assert {call.model_version for call in backend.calls} == {"7"}


EXAMPLE = PROJECT / "docs" / "examples" / "stream.mjs"


def node(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Node with WebSockets, which are an option before Node 22."""
    program = shutil.which("node") or pytest.skip("node is not installed")
    command = [program, "--experimental-websocket", *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def frames(tmp_path: Path) -> list[str]:
    """A bright image, no image and a dark one, below a folder with a space in its name."""
    contents = {"bright.png": frame(250), "notes.txt": b"text", "dark #1.png": frame(0)}
    folder = tmp_path / "my frames"
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [str(folder / name) for name in contents]


def test_node_gets_an_answer_for_each_frame(frames: list[str]):
    with stream_service(frame_backend()) as (address, _):
        run = node(str(EXAMPLE), f"http://{address}", *frames)
    assert run.returncode == 0, run.stderr
    bright, notes, dark = run.stdout.splitlines()
    assert bright.startswith(f"{frames[0]} bright 98.")
    assert notes.startswith(f"{frames[1]} The file is not a JPEG")
    assert dark.startswith(f"{frames[2]} dark 100.0 %")
    assert "so far:" in dark


def test_key_is_sent_and_a_missing_one_is_an_error(frames: list[str], tmp_path: Path):
    keys = tmp_path / "keys"
    key = add_key(keys, "node")
    code = """
      const [example, address, key] = process.argv.slice(1);
      const { classifyFrames } = await import(example);
      const { readFile } = await import("node:fs/promises");
      const frames = [await readFile(process.argv[4])];
      for await (const { predictions } of classifyFrames(address, frames, { key })) console.log(predictions[0].label);
    """
    script = ("--input-type=module", "--eval", code, EXAMPLE.as_uri())
    with stream_service(frame_backend(), api_keys_file=keys) as (address, _):
        known = node(*script, f"http://{address}/", key, frames[0])
        unknown = node(*script, f"http://{address}/", "", frames[0])
    assert (known.returncode, known.stdout) == (0, "bright\n"), known.stderr
    assert unknown.returncode != 0
    assert "a GET of the address says why" in unknown.stderr
