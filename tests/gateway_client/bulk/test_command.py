"""`gateway classify` against a service: rows, formats, exit codes, and runs that end early."""

import csv
import errno
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow.json
import pyarrow.parquet
import pytest

from gateway.command_line.terminal import print_status
from gateway.errors import ModelNotFound, Overloaded
from gateway.plugins.keys.key_file import add_key
from gateway_client.bulk import outputs
from gateway_client.bulk import run as bulk_run
from gateway_client.bulk.archives import ARCHIVE_SUFFIXES
from gateway_client.bulk.outputs import COLUMNS
from gateway_client.bulk.rows import Rows
from gateway_local.commands import classify
from gateway_local.commands.classify import Exit
from tests import warm
from tests.doubles.backend import CAT, PNG, VECTOR, StubBackend, with_vector
from tests.gateway_client.bulk.running import command, folder_of, part_of, rows_of, run
from tests.processes import PROJECT, START_SECONDS, environment, wait_for
from tests.services import stub_service


@pytest.fixture
def photos(tmp_path):
    return folder_of(tmp_path / "photos", 5, PNG)


def spoil(photos: Path, number: int) -> None:
    (photos / "000" / f"bad{number}.png").write_bytes(b"text")


def test_each_image_of_a_folder_has_a_row(url, tmp_path):
    photos = folder_of(tmp_path / "photos", 150, PNG)
    printed = run(photos, "--out", tmp_path / "new" / "out.jsonl", "--gateway", url)
    rows = rows_of(tmp_path / "new" / "out.jsonl")
    assert sorted(row["path"] for row in rows) == sorted(map(str, photos.rglob("*.png")))
    assert {key: rows[0][key] for key in rows[0] if key != "path"} == {
        "status": "ok",
        "label": "cat",
        "class_id": 0,
        "score": 0.9,
        "predictions": [{"label": "cat", "class_id": 0, "score": 0.9}],
        "width": 4,
        "height": 4,
        "model": "ensemble_model",
        "version": "1",
        "error": None,
        "message": None,
        "warning": None,
    }
    assert "150 rows" in printed
    assert not list(tmp_path.glob("new/*.part"))


def test_csv_and_parquet_have_the_same_rows(url, photos, tmp_path):
    spoil(photos, 1)
    for kind in ("csv", "parquet"):
        run(photos, "-o", tmp_path / f"out.{kind}", "--gateway", url, code=3)
    with (tmp_path / "out.csv").open(newline="") as file:
        in_csv = {row["path"]: row for row in csv.DictReader(file)}
    in_parquet = {row["path"]: row for row in pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()}
    assert in_csv.keys() == in_parquet.keys()
    assert len(in_csv) == 6
    bad, good = str(photos / "000" / "bad1.png"), str(photos / "000" / "000003.png")
    assert (in_csv[bad]["error"], in_parquet[bad]["error"]) == ("unsupported_format", "unsupported_format")
    assert (in_csv[good]["label"], in_parquet[good]["label"]) == ("cat", "cat"), (in_csv[good], in_parquet[good])
    assert json.loads(in_csv[good]["predictions"])[0]["label"] == in_parquet[good]["predictions"][0]["label"]


def test_non_utf_8_names_leave_the_output_readable(url, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    Path(os.fsdecode(os.fsencode(photos) + b"/\xe9.png")).write_bytes(PNG)
    expected = f"{photos}/\\udce9.png"
    for kind in ("csv", "jsonl", "parquet"):
        run(photos, "-o", tmp_path / f"out.{kind}", "--gateway", url)
    assert [line.partition(",")[0] for line in (tmp_path / "out.csv").read_text("utf-8").splitlines()[1:]] == [expected]
    assert pyarrow.json.read_json(tmp_path / "out.jsonl")["path"].to_pylist() == [expected]
    assert pyarrow.parquet.read_table(tmp_path / "out.parquet")["path"].to_pylist() == [expected]


def test_failures_are_counted_by_code(url, photos, tmp_path):
    for number in range(3):
        spoil(photos, number)
    printed = run(photos, "--out", tmp_path / "out.jsonl", "--gateway", url, code=3)
    assert "3 images failed:\ngateway |   3 unsupported_format\n" in printed


def test_existing_output_needs_overwrite(url, photos, tmp_path):
    out = tmp_path / "out.jsonl"
    out.write_text("mine\n")
    refused = run(photos, "--out", out, "--gateway", url, code=1)
    assert out.read_text() == "mine\n"
    assert "--resume" in refused
    run(photos, "--out", out, "--gateway", url, "--overwrite")
    assert len(rows_of(out)) == 5


def end_early(monkeypatch, *arguments) -> None:
    """A run that classifies all images, and then has no space for the output."""

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(bulk_run, "whole_file", full)
        assert "No space left on device" in run(*arguments, code=1)


@pytest.mark.parametrize(
    ("before", "now", "reason"),
    [
        ((), ("--model", "flowers"), "with --model ensemble_model, and this run is with --model flowers"),
        (("--top-k", "1"), ("--top-k", "3"), "with --top-k 1, and this run is with --top-k 3"),
        (("--shard", "1/1"), (), "with --shard 1/1, and this run is without --shard"),
        ((), ("--version", "2"), "with --version 1, and this run is with --version 2"),
        ((), ("--embeddings",), "without --embeddings, and this run is with --embeddings"),
    ],
)
def test_run_is_not_resumed_with_other_options(url, photos, tmp_path, monkeypatch, before, now, reason):
    out = tmp_path / "out.jsonl"
    end_early(monkeypatch, photos, "--out", out, "--gateway", url, *before)
    kept = part_of(out)
    assert len(kept) == 5
    refused = run(photos, "--out", out, "--gateway", url, "--resume", *now, code=1)
    assert reason in " ".join(refused.split())
    assert part_of(out) == kept
    run(photos, "--out", out, "--gateway", url, "--resume", *before)
    assert rows_of(out) == kept


def answered_by(version: str) -> StubBackend:
    """A service whose default version is this one, which also serves the others that a request names."""

    def answer(call):
        return replace(CAT, model_version=call.model_version or version)

    return StubBackend(answer)


def test_table_has_the_version_that_answered_first(photos, tmp_path, monkeypatch):
    out = tmp_path / "out.jsonl"
    with stub_service(answered_by("1")) as url:
        end_early(monkeypatch, photos, "--out", out, "--gateway", url)
    (photos / "new.png").write_bytes(PNG)
    with stub_service(StubBackend(ModelNotFound("There is no version 1."))) as url:
        gone = run(photos, "--out", out, "--gateway", url, "--resume", code=1)
        assert "are from version 1 of the model, which the service no longer has" in " ".join(gone.split())
    with stub_service(answered_by("2")) as url:
        refused = run(photos, "--out", out, "--gateway", url, "--resume", "--version", "2", code=1)
        assert "with --version 1, and this run is with --version 2" in " ".join(refused.split())
        run(photos, "--out", out, "--gateway", url, "--resume")
    assert [row["version"] for row in rows_of(out)] == ["1"] * 6


def test_finished_output_is_not_changed_by_resume(url, photos, tmp_path):
    out = tmp_path / "out.csv"
    run(photos, "--out", out, "--gateway", url)
    before = out.read_text()
    assert "is complete; --overwrite" in run(photos, "--out", out, "--gateway", url, "--resume")
    assert out.read_text() == before


def test_image_that_is_named_twice_has_one_row(url, photos, tmp_path):
    out = tmp_path / "out.jsonl"
    run(photos, photos / "000" / "000001.png", photos, "--out", out, "--gateway", url)
    assert sorted(row["path"] for row in rows_of(out)) == sorted(map(str, photos.rglob("*.png")))


def test_second_run_of_an_output_is_refused(url, photos, tmp_path):
    out = tmp_path / "out.jsonl"
    with closing(sqlite3.connect(f"{out}.part", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert "another run uses it" in run(photos, "--out", out, "--gateway", url, "--resume", code=1)


def test_paths_come_from_stdin_and_rows_go_to_stdout(url, photos):
    for separator in ("\n", "\0"):
        paths = separator.join(str(path) for path in sorted(photos.rglob("*.png"))[:3])
        code = "from gateway.command_line.main import main; main()"
        done = warm.run(code, ["classify", "-", "--gateway", url], environment=environment(), given=paths)
        assert done.returncode == 0, done.stderr
        assert [json.loads(line)["label"] for line in done.stdout.splitlines()] == ["cat"] * 3


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["none.png", "--out", "out.jsonl"], 1, "there is no file or folder 'none.png'"),
        (["photos", "--out", "out.xlsx"], 1, "must be .jsonl, .csv or .parquet"),
        (["photos", "--out", "photos/000/000000.png/out.csv"], 1, "cannot be written: "),
        (["x" * 4_000], 1, f"File name too long: {'x' * 150}…{'x' * 149}"),
    ],
)
def test_faults_are_reported_in_one_sentence(photos, tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    printed = run(*arguments, "--gateway", "http://127.0.0.1:9", code=code)
    assert message in " ".join(printed.split())
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_ctrl_c_keeps_the_rows(photos, tmp_path, number):
    spoil(photos, 1)
    with stub_service(StubBackend(Overloaded())) as url:
        process = subprocess.Popen(
            command(photos, "--out", tmp_path / "out.jsonl", "--gateway", url),
            env=environment(),
            stderr=subprocess.PIPE,
        )
        # A bad image has its row while the others wait for the service.
        wait_for(lambda: part_of(tmp_path / "out.jsonl"), timeout_seconds=START_SECONDS, process=process)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr.count(b"Traceback")) == (130, 0), stderr
    assert b"--resume continues" in stderr
    assert [row["error"] for row in part_of(tmp_path / "out.jsonl")] == ["unsupported_format"]


def test_closed_stdout_ends_the_run_silently(url, tmp_path):
    photos = folder_of(tmp_path / "photos", 600, PNG)  # more rows than a pipe holds
    with subprocess.Popen(
        command(photos, "--gateway", url), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdout.readline().startswith(b"{")
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode


def test_full_disk_loses_no_written_row(url, photos, tmp_path, monkeypatch):
    out = tmp_path / "out.csv"
    add, calls = Rows.add, 0

    def full(rows, row):
        nonlocal calls
        calls += 1
        if calls == 3:
            raise sqlite3.OperationalError("database or disk is full")
        return add(rows, row)

    with monkeypatch.context() as patch:
        patch.setattr(Rows, "add", full)
        printed = run(photos, "--out", out, "--gateway", url, code=1)
    assert "cannot be written: database or disk is full; " in printed
    assert f"{out}.part has the rows so far; --resume continues" in printed
    assert not out.exists()
    with monkeypatch.context() as patch:
        patch.setattr(outputs, "csv_line", lambda _: os.write(os.open("/dev/full", os.O_WRONLY), b"x"))
        printed = run(photos, "--out", out, "--gateway", url, "--resume", code=1)
    assert "rows from before: 2" in printed
    assert "cannot be written: No space left on device; " in printed
    again = run(photos, "--out", out, "--gateway", url, "--resume")
    assert "rows from before: 5" in again
    assert len(out.read_text().splitlines()) == 6


def test_run_without_rows_leaves_no_files(url, photos, tmp_path):
    out = tmp_path / "out.jsonl"
    for wrong, words in (
        (["--gateway", "http://127.0.0.1:9"], "There is no gateway at"),
        (["--gateway", url, "--top-k", 99999], "'top_k': must be at most"),
    ):
        printed = run(photos, "--out", out, *wrong, code=1)
        assert words in printed
        assert "--resume" not in printed
        assert not Path(f"{out}.part").exists()
    run(photos, "--out", out, "--gateway", url)


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
        printed = run(photos, *(["--out", tmp_path / "out.jsonl"] if to_file else []), "--gateway", url)
    assert "waiting: " in printed


@pytest.mark.parametrize("to_file", [True, False])
def test_sources_without_images_are_an_error(url, tmp_path, to_file):
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "noending").write_bytes(PNG)
    printed = run(photos, *(["--out", tmp_path / "out.jsonl"] if to_file else []), "--gateway", url, code=1)
    assert not list(tmp_path.glob("out*"))
    assert "skipped 1 file without an image's suffix, such as 'noending'" in printed
    assert f"no images in {photos}\n" in printed
    run(photos / "noending", "--out", tmp_path / "all.jsonl", "--gateway", url)
    assert len(rows_of(tmp_path / "all.jsonl")) == 1


def test_rows_have_embeddings(tmp_path):
    photos = folder_of(tmp_path / "photos", 3, PNG)
    (photos / "bad.png").write_bytes(b"text")
    with stub_service(StubBackend(with_vector)) as url:
        for kind in ("parquet", "csv", "jsonl"):
            run(photos, "--embeddings", "-o", tmp_path / f"out.{kind}", "--gateway", url, code=3)
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert str(table.schema.field("embedding").type) == "list<element: float>"
    with (tmp_path / "out.csv").open(newline="") as file:
        in_csv = [{**row, "embedding": json.loads(row["embedding"] or "null")} for row in csv.DictReader(file)]
    for rows in (table.to_pylist(), in_csv, rows_of(tmp_path / "out.jsonl")):
        assert sorted((row["label"] or "", row["embedding"] or []) for row in rows) == [
            ("", []),
            *[("cat", VECTOR.tolist())] * 3,
        ]


def test_missing_key_error_names_the_option(tmp_path, monkeypatch):
    key = add_key(tmp_path / "keys", "me")
    photo = tmp_path / "a.png"
    photo.write_bytes(PNG)
    with stub_service(api_keys_file=tmp_path / "keys") as url:
        refused = run(photo, "--gateway", url, code=1)
        run(photo, "--gateway", url, "--api-key", key)
        (tmp_path / ".env").write_text(f"GATEWAY_API_KEY={key}\n")
        monkeypatch.chdir(tmp_path)
        run(photo, "--gateway", url)
        monkeypatch.setenv("GATEWAY_API_KEY", "tig_wrong")
        run(photo, "--gateway", url, code=1)
    assert "by --api-key KEY, or by the variable GATEWAY_API_KEY" in " ".join(refused.split())


TEXT = (PROJECT / "docs" / "guides" / "bulk.md").read_text()
EXAMPLES = re.findall(r"^```console\n\$ (.+)\n((?:.+\n)+)```$", TEXT, re.MULTILINE)


@pytest.mark.slow
def test_commands_print_the_documented_output(tmp_path):
    assert len(EXAMPLES) == TEXT.count("```console\n$ ") == 3
    (tmp_path / "docs").symlink_to(PROJECT / "docs")
    with stub_service() as url:
        for command, documented in EXAMPLES:
            program = f"{sys.executable} -m gateway classify --gateway {url}"
            run = subprocess.run(
                ["bash", "-c", command.replace("gateway classify", program)],
                cwd=tmp_path,
                env={**environment(), "PYTHONPATH": str(PROJECT)},
                capture_output=True,
                text=True,
                timeout=120,
                check=True,
            )
            if documented.startswith("{"):
                expected, row = json.loads(documented), json.loads(run.stdout)
                assert list(expected) == list(row) == list(COLUMNS)
                assert all(value in ("…", row[name]) for name, value in expected.items())
            else:
                assert re.fullmatch(re.escape(documented).replace("…", r"[\d.,]+"), run.stderr), run.stderr


def test_suffixes_columns_and_exit_codes_are_documented():
    assert all(f"`{name}`" in TEXT for name in COLUMNS)
    assert all(f"`{ending}`" in TEXT for ending in ARCHIVE_SUFFIXES - {".tbz2", ".txz"})
    assert all(f"| {int(code)} | " in TEXT for code in Exit)
