"""Outputs of many files, and shards: nothing lost, nothing doubled, whatever ends a run."""

import json
import random
from pathlib import Path

import pyarrow.parquet
import pytest

from gateway_client.bulk.partitions import LocalFolder
from gateway_client.bulk.shards import MAX_SHARDS, Shard, ShardUnreadable, read_shard
from tests import warm
from tests.buckets import s3_server
from tests.doubles.backend import PNG, StubBackend
from tests.gateway_client.bulk.running import folder_of, rows_of, run, start
from tests.processes import START_SECONDS, wait_for
from tests.services import stub_service


def paths_of(folder: Path) -> list[str]:
    """The images of all rows of a folder's files, sorted."""
    tables = [pyarrow.parquet.read_table(path, columns=["path"]) for path in sorted(folder.glob("*.parquet"))]
    return sorted(path for table in tables for path in table.column("path").to_pylist())


def images_of(photos: Path) -> list[str]:
    return sorted(map(str, photos.rglob("*.png")))


def test_files_have_the_rows_of_successive_images(tmp_path, url):
    photos, out = folder_of(tmp_path / "photos", 250, PNG), tmp_path / "out"
    printed = run(photos, "--out", f"{out}/", "--rows-per-file", 100, "--gateway", url)
    assert "250 rows; 250 images" in printed
    tables = [pyarrow.parquet.read_table(path) for path in sorted(out.iterdir())]
    assert [table.num_rows for table in tables] == [100, 100, 50]
    assert [set(table.column("path").to_pylist()) for table in tables] == [
        set(images_of(photos)[first : first + 100]) for first in (0, 100, 200)
    ]
    assert paths_of(out) == images_of(photos)
    again = run(photos, "--out", out, "--rows-per-file", 100, "--gateway", url, code=1)
    assert "continue with --resume" in again
    resumed = run(photos, "--out", out, "--rows-per-file", 100, "--gateway", url, "--resume")
    assert "rows from before: 250" in resumed
    assert "250 rows; 0 images" in resumed
    # A missing file alone is written again.
    for gone in range(3):
        before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
        sorted(out.iterdir())[gone].unlink()
        run(photos, "--out", out, "--rows-per-file", 100, "--gateway", url, "--resume")
        after = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
        assert after.keys() == before.keys()
        assert [name for name in sorted(after) if after[name] != before[name]] == [sorted(before)[gone]]


@pytest.mark.parametrize("change", ["less", "more", "options", "size", "format"])
def test_other_sources_or_options_are_refused(tmp_path, url, change):
    photos, out = folder_of(tmp_path / "photos", 150, PNG), tmp_path / "out"
    size, options = ("--rows-per-file", 100), ()
    run(photos, "--out", f"{out}/", *size, "--gateway", url)
    match change:
        case "less":
            for path in list(photos.rglob("*.png"))[:60]:
                path.unlink()
        case "more":
            (photos / "000" / "000000a.png").write_bytes(PNG)
        case "options":
            options = ("--top-k", 1)
        case "size":
            size = ("--rows-per-file", 75)
        case "format":
            options = ("--format", "jsonl")
    refused = run(photos, "--out", f"{out}/", *size, *options, "--gateway", url, "--resume", code=1)
    assert "another format" in refused if change == "format" else "--overwrite to start again" in refused
    run(photos, "--out", f"{out}/", *size, *options, "--gateway", url, "--overwrite")
    if change != "format":
        assert paths_of(out) == images_of(photos)


def test_shards_divide_the_images(tmp_path, url):
    photos, out = folder_of(tmp_path / "photos", 300, PNG), tmp_path / "out"
    for number in (1, 2, 3, 4):
        run(photos, "--shard", f"{number}/4", "--out", f"{out}/", "--rows-per-file", 50, "--gateway", url)
    assert paths_of(out) == images_of(photos)
    assert {path.name.split("-000")[0] for path in out.iterdir()} == {f"part-{number}-of-4" for number in (1, 2, 3, 4)}
    other = run(photos, "--shard", "1/5", "--out", f"{out}/", "--gateway", url, code=1)
    assert "another division into shards" in other


def test_shard_without_images_is_done(tmp_path, url):
    """Sixteen pods of ten images: one may have none, which is no failure of the job."""
    photos = folder_of(tmp_path / "photos", 1, PNG)
    for number in range(1, 9):
        run(photos, "--shard", f"{number}/8", "-o", f"{tmp_path / 'out'}/", "--gateway", url)
    assert paths_of(tmp_path / "out") == images_of(photos)


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "1/0", "-1/4", f"1/{MAX_SHARDS + 1}", "1/4/2", "²/4"])
def test_shards_are_read_up_to_the_most(text):
    assert read_shard(f"{MAX_SHARDS}/{MAX_SHARDS}") == Shard(MAX_SHARDS, MAX_SHARDS)
    with pytest.raises(ShardUnreadable, match="NUMBER/COUNT"):
        read_shard(text)


def test_jsonl_and_csv(tmp_path, url):
    photos = folder_of(tmp_path / "photos", 3, PNG)
    for kind in ("jsonl", "csv"):
        out = tmp_path / kind
        run(photos, "--out", f"{out}/", "--format", kind, "--gateway", url)
        (file,) = out.iterdir()
        assert file.name.startswith("part-000000-")
        assert len(file.read_text().splitlines()) == 3 + (kind == "csv")
    row = json.loads((next((tmp_path / "jsonl").iterdir())).read_text().splitlines()[0])
    assert "index" not in row


def test_failed_write_leaves_no_file(tmp_path, url, monkeypatch):
    """A full disk: the file is whole or not there, and --resume writes it."""
    photos, out = folder_of(tmp_path / "photos", 30, PNG), tmp_path / "out"
    put = LocalFolder.put

    def full(folder: LocalFolder, file: Path, name: str) -> None:
        if "-000001-" in name:
            raise OSError(28, "No space left on device")
        put(folder, file, name)

    arguments = (photos, "--out", f"{out}/", "--rows-per-file", 10, "--gateway", url)
    with monkeypatch.context() as patch:
        patch.setattr(LocalFolder, "put", full)
        failed = run(*arguments, code=1)
    assert "No space left on device" in failed
    assert "--resume continues" in failed
    run(*arguments, "--resume")
    assert paths_of(out) == images_of(photos)


@pytest.mark.long
@pytest.mark.slow
def test_shards_that_are_killed_at_random(tmp_path):
    """Four processes, each of which is killed once and resumed; the test below kills one three times."""
    photos, out = folder_of(tmp_path / "photos", 800, PNG), tmp_path / "out"
    chance = random.Random(7)

    def start_shard(number: int, url: str, *options: object) -> warm.Process:
        arguments = (photos, "--shard", f"{number}/4", "--out", f"{out}/", "--rows-per-file", 40, "--gateway", url)
        # Where the temporary files of a killed process stay.
        return start(*arguments, *options, TMPDIR=str(tmp_path))

    def files(number: int) -> int:
        return len(list(out.glob(f"part-{number}-of-4-*"))) if out.exists() else 0

    with stub_service(StubBackend(seconds=0.05)) as url:
        running = {number: start_shard(number, url, "--resume") for number in (1, 2, 3, 4)}
        for number, process in running.items():
            enough = files(number) + chance.randint(1, 3)
            ended = process.poll  # a fast one may have written all of its files
            wait_for(
                lambda n=number, enough=enough, ended=ended: files(n) >= enough or ended() is not None,
                timeout_seconds=START_SECONDS,
            )
            process.kill()
        for process in running.values():
            process.wait()
        running = {number: start_shard(number, url, "--resume") for number in (1, 2, 3, 4)}
        assert [process.wait(START_SECONDS) for process in running.values()] == [0] * 4
    assert paths_of(out) == images_of(photos)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    with s3_server(tmp_path_factory.mktemp("s3"), "photos") as s3, pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment.items():
            patch.setenv(name, value)
        yield s3


def test_bucket(tmp_path, url, bucket):
    """From a bucket into a bucket; a file that is there is not sent again."""
    folder_of(bucket.folder / "photos" / "in", 25, PNG)
    arguments = ("s3://photos/in/", "-o", "s3://photos/out/", "--rows-per-file", 10, "--gateway", url)
    run(*arguments)
    out = bucket.folder / "photos" / "out"
    assert len(paths_of(out)) == len(set(paths_of(out))) == 25
    sorted(out.iterdir())[1].unlink()
    resumed = run(*arguments, "--resume")
    assert "25 rows; 10 images" in resumed, resumed
    assert len(set(paths_of(out))) == 25
    run(*arguments, code=1)


def test_empty_and_missing_buckets(url, bucket):
    (bucket.folder / "photos" / "empty").mkdir()
    assert "contains no images" in run("s3://photos/empty/", "--gateway", url, code=1)
    assert "there is no bucket 'nobucket'" in run("s3://nobucket/x", "--gateway", url, code=1)


IMAGES = 2_000


@pytest.mark.slow
def test_each_image_has_one_row_after_three_kills(tmp_path):
    photos, out = folder_of(tmp_path / "photos", IMAGES, PNG), tmp_path / "out.jsonl"
    journal = tmp_path / "out.jsonl.part"
    kept = [0]
    # So slow that a run takes seconds on any machine and can be killed midway.
    with stub_service(StubBackend(seconds=0.05)) as url:
        for kill in range(3):
            process = start(
                photos, "--out", out, "--gateway", url, *(["--resume"] if kill else []), TMPDIR=str(tmp_path)
            )
            enough = kept[-1] + 200
            wait_for(lambda enough=enough: journal.exists() and lines(journal) > enough, process=process)
            process.kill()
            process.wait()
            kept.append(lines(journal))
        # As an editor may leave it: a row of a missing image, and an incomplete last line.
        journal.write_bytes(journal.read_bytes().rpartition(b"\n")[0] + b'\n{"path":"gone.png","error":null}\n{"pa')
        printed = run(photos, "--out", out, "--gateway", url, "--resume")
    assert sorted(row["path"] for row in rows_of(out)) == sorted(["gone.png", *map(str, photos.rglob("*.png"))])
    assert "kept 1 row of images that are not among the sources" in printed
    assert "dropped the last line, which is incomplete" in printed
    assert kept == sorted(kept)
    assert f"rows from before: {kept[-1] + 1:,}" in printed


def lines(path) -> int:
    return path.read_bytes().count(b"\n")
