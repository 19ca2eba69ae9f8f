"""A killed run is resumed, and every image has exactly one row."""

import subprocess

import pytest

from tests.doubles.backend import PNG, StubBackend
from tests.gateway_client.bulk.running import command, folder_of, rows_of, run
from tests.processes import environment, wait_for
from tests.services import stub_service

IMAGES = 2_000


@pytest.mark.slow
def test_each_image_has_one_row_after_three_kills(tmp_path):
    photos, out = folder_of(tmp_path / "photos", IMAGES, PNG), tmp_path / "out.jsonl"
    journal = tmp_path / "out.jsonl.part"
    kept = [0]
    # So slow that a run takes seconds on any machine and can be killed midway.
    with stub_service(StubBackend(seconds=0.05)) as url:
        for kill in range(3):
            arguments = command(photos, "--out", out, "--gateway", url, *(["--resume"] if kill else []))
            process = subprocess.Popen(arguments, env=environment(), stderr=subprocess.DEVNULL)
            enough = kept[-1] + 200
            wait_for(lambda enough=enough: journal.exists() and lines(journal) > enough, process=process)
            process.kill()
            process.wait()
            kept.append(lines(journal))
        # As an editor may leave it: a row of a missing image, and an incomplete last line.
        journal.write_bytes(journal.read_bytes().rpartition(b"\n")[0] + b'\n{"path":"gone.png","error":null}\n{"pa')
        done = run(photos, "--out", out, "--gateway", url, "--resume")
    assert done.returncode == 0, done.stderr
    assert sorted(row["path"] for row in rows_of(out)) == sorted(["gone.png", *map(str, photos.rglob("*.png"))])
    assert "kept 1 row of images that are not among the sources" in done.stderr
    assert "dropped the last line, which is incomplete" in done.stderr
    assert kept == sorted(kept)
    assert f"rows from before: {kept[-1] + 1:,}" in done.stderr


def lines(path) -> int:
    return path.read_bytes().count(b"\n")
