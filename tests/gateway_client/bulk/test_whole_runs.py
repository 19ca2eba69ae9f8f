"""Shards, buckets and runs that are killed: nothing lost, nothing doubled."""

from pathlib import Path

import pytest

from gateway_client.bulk import BulkError
from gateway_client.bulk.sources import MAX_SHARDS, Shard, read_shard
from tests.buckets import s3_server
from tests.doubles.backend import PNG, StubBackend
from tests.gateway_client.bulk.running import folder_of, part_of, rows_of, run, start
from tests.processes import wait_for
from tests.services import stub_service


def images_of(photos: Path) -> list[str]:
    return sorted(map(str, photos.rglob("*.png")))


def test_shards_divide_the_images(tmp_path, url):
    """A shard of few images may have none, which is no failure."""
    photos = folder_of(tmp_path / "photos", 20, PNG)
    outs = [tmp_path / f"{number}.jsonl" for number in range(1, 17)]
    for number, out in enumerate(outs, 1):
        run(photos, "--shard", f"{number}/16", "--out", out, "--gateway", url)
    assert sorted(row["path"] for out in outs for row in rows_of(out)) == images_of(photos)
    assert any(not rows_of(out) for out in outs)


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "1/0", "-1/4", f"1/{MAX_SHARDS + 1}", "1/4/2", "²/4"])
def test_shards_are_read_up_to_the_most(text):
    assert read_shard(f"{MAX_SHARDS}/{MAX_SHARDS}") == Shard(MAX_SHARDS, MAX_SHARDS)
    with pytest.raises(BulkError, match="NUMBER/COUNT"):
        read_shard(text)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    with s3_server(tmp_path_factory.mktemp("s3"), "photos") as s3, pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment.items():
            patch.setenv(name, value)
        yield s3


def test_bucket(tmp_path, url, bucket):
    photos = folder_of(bucket.folder / "photos" / "in", 25, PNG)
    for name in (".hidden.png", "__MACOSX/a.png", "notes.txt"):
        (photos / name).parent.mkdir(exist_ok=True)
        (photos / name).write_bytes(PNG)
    out = tmp_path / "out.jsonl"
    assert "skipped 1 file" in run("s3://photos/in/", "-o", out, "--gateway", url)
    assert len({row["path"] for row in rows_of(out)}) == len(rows_of(out)) == 25


IMAGES = 2_000


@pytest.mark.slow
def test_each_image_has_one_row_after_three_kills(tmp_path):
    photos, out = folder_of(tmp_path / "photos", IMAGES, PNG), tmp_path / "out.jsonl"
    kept = [0]
    # So slow that a run takes seconds on any machine and can be killed midway.
    with stub_service(StubBackend(seconds=0.05)) as url:
        for kill in range(3):
            process = start(photos, "--out", out, "--gateway", url, *(["--resume"] if kill else []))
            enough = kept[-1] + 100
            wait_for(lambda enough=enough: len(part_of(out)) > enough, process=process)
            process.kill()
            process.wait()
            kept.append(len(part_of(out)))
        printed = run(photos, "--out", out, "--gateway", url, "--resume")
    assert sorted(row["path"] for row in rows_of(out)) == images_of(photos)
    assert kept == sorted(kept)
    assert f"rows from before: {kept[-1]:,}" in printed
