"""Runs that end early: full disks, closed pipes, unreachable services."""

import errno
import subprocess
from pathlib import Path

import pytest

from gateway.errors import Overloaded
from gateway_cli import classify
from gateway_cli.terminal import print_status
from gateway_client.bulk.journal import Journal
from gateway_client.bulk.meter import Meter
from tests.doubles.backend import PNG, StubBackend
from tests.gateway_client.bulk.running import command, folder_of, rows_of, run
from tests.processes import environment
from tests.services import stub_service


@pytest.fixture
def photos(tmp_path):
    return folder_of(tmp_path / "photos", 5, PNG)


def spoil(photos: Path, number: int) -> None:
    (photos / "000" / f"bad{number}.png").write_bytes(b"text")


def test_closed_stdout_ends_the_run_silently(url, tmp_path):
    photos = folder_of(tmp_path / "photos", 600, PNG)  # more rows than a pipe holds
    with subprocess.Popen(
        command(photos, "--gateway", url), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdout.readline().startswith(b"{")
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode


def test_full_disk_under_stdout_is_reported(url, photos):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command(photos, "--gateway", url), stdout=full, stderr=subprocess.PIPE, env=environment(), timeout=120
        )
    assert done.returncode == 1
    assert b"error: the rows cannot be written: No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("step", ["write", "finish"])
def test_full_disk_loses_no_written_row(url, photos, tmp_path, monkeypatch, step):
    out = tmp_path / "out.csv"
    work, calls = getattr(Journal, step), 0

    def full(*arguments):
        nonlocal calls
        calls += 1
        if calls == 3 or step == "finish":
            raise OSError(errno.ENOSPC, "No space left on device")
        return work(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, step, full)
        done = run(photos, "--out", out, "--gateway", url, code=1)
    assert "cannot be written: No space left on device; " in done.stderr
    assert f"{out}.part has the rows so far; --resume continues" in done.stderr
    assert not out.exists()
    again = run(photos, "--out", out, "--gateway", url, "--resume")
    assert f"rows from before: {5 if step == 'finish' else 2}" in again.stderr
    assert len(out.read_text().splitlines()) == 6


def test_unwritable_output_path_is_reported(url, photos, tmp_path):
    (tmp_path / "file").write_text("")
    done = run(photos, "--out", tmp_path / "file" / "out.csv", "--gateway", url, code=1)
    assert "cannot be written: " in done.stderr


def test_run_without_rows_leaves_no_files(url, photos, tmp_path):
    out = tmp_path / "out.jsonl"
    for wrong, words in (
        (["--gateway", "http://127.0.0.1:9"], "There is no gateway at"),
        (["--gateway", url, "--top-k", 99999], "'top_k': must be at most"),
    ):
        done = run(photos, "--out", out, *wrong, code=1)
        assert words in done.stderr
        assert "--resume" not in done.stderr
        assert not Path(f"{out}.part").exists()
    run(photos, "--out", out, "--gateway", url)


def test_failures_of_earlier_runs_are_counted(url, photos, tmp_path):
    out = tmp_path / "out.jsonl"
    spoil(photos, 1)
    run(photos, "--out", out, "--gateway", url, code=3)
    spoil(photos, 2)
    done = run(photos, "--out", out, "--gateway", url, "--resume", code=3)
    assert "2 images failed:\ngateway |   2 unsupported_format\n" in done.stderr
    spoil(photos, 3)
    done = run(photos, "--out", out, "--gateway", url, "--resume", "--max-failures", 2, code=4)
    assert "3 images failed, more than --max-failures: 3 unsupported_format; " in done.stderr
    assert len(rows_of(Path(f"{out}.part"))) == 8


def test_stalled_run_shows_no_time_left():
    meter = Meter(before=5, failed_before={"empty_file": 1})
    meter.total = 10
    meter.waiting = "More images are in flight than the limits allow."
    assert meter.summary() == "5 of 10, 0.0/s, 1 failed, waiting: More images are in flight than the limits allow."


@pytest.mark.parametrize("to_file", [True, False])
def test_waiting_and_its_reason_are_shown(photos, tmp_path, monkeypatch, to_file):
    monkeypatch.setattr(classify, "SECONDS_BETWEEN_LINES", 0.0)
    backend = StubBackend(Overloaded())

    def recover(text):
        if "waiting: " in text:
            backend.fault = None
        print_status(text)

    monkeypatch.setattr(classify, "print_status", recover)
    with stub_service(backend) as url:
        done = run(photos, *(["--out", tmp_path / "out.jsonl"] if to_file else []), "--gateway", url)
    assert "waiting: " in done.stderr


@pytest.mark.parametrize("to_file", [True, False])
def test_sources_without_images_are_an_error(url, tmp_path, to_file):
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "noending").write_bytes(PNG)
    done = run(photos, *(["--out", tmp_path / "out.jsonl"] if to_file else []), "--gateway", url, code=1)
    assert not list(tmp_path.glob("out*"))
    assert f"skipped 1 file without an image's suffix, such as '{photos / 'noending'}'" in done.stderr
    assert f"no images in {photos}\n" in done.stderr
    run(f"{photos}/*", "--out", tmp_path / "all.jsonl", "--gateway", url)
    assert len(rows_of(tmp_path / "all.jsonl")) == 1
