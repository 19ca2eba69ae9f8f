"""Workers of one port learn from each other which images end processes."""

import os
from pathlib import Path

import pytest

from gateway.server.workers import shared_file, sharing
from gateway.triton import notes as module
from gateway.triton.notes import Notes
from gateway.triton.quarantine import Quarantine


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "quarantine"


def test_what_one_worker_learns_all_of_them_know(path):
    now = 100.0
    one, other = (Quarantine(60, lambda: now, Notes(path)) for _ in range(2))
    one.suspect([b"a", b"b", b"c"])
    assert [other.is_suspect(code) for code in (b"a", b"b", b"c", b"d")] == [True, True, True, False]
    other.acquit(b"a")
    other.convict(b"b")
    for worker in (one, other):
        assert [worker.is_suspect(code) for code in (b"a", b"b", b"c")] == [False, False, True]
        assert [worker.is_convicted(code) for code in (b"a", b"b", b"c")] == [False, True, False]
    now += 60
    assert not one.is_convicted(b"b")
    one.close()
    other.close()


def test_a_worker_that_starts_later_knows_what_the_others_met(path):
    first = Quarantine(60, notes=Notes(path))
    first.convict(b"a")
    later = Quarantine(60, notes=Notes(path))
    assert later.is_convicted(b"a")
    first.close()
    later.close()


def test_answers_leave_no_note_and_the_file_has_a_bound(path, monkeypatch):
    notes = Notes(path)
    quarantine = Quarantine(60, notes=notes)
    for number in range(100):
        quarantine.acquit(bytes([number]))
    assert path.stat().st_size == 0
    monkeypatch.setattr(module, "MOST_BYTES", 200)
    quarantine.suspect(bytes([number]) for number in range(100))
    assert 200 <= path.stat().st_size < 300
    assert quarantine.is_suspect(bytes([99])), "it is remembered here all the same"
    quarantine.close()


def test_without_a_file_each_worker_learns_by_itself(tmp_path):
    quarantine = Quarantine(60, notes=Notes(tmp_path / "no folder" / "file"))
    quarantine.convict(b"a")
    assert quarantine.is_convicted(b"a")
    quarantine.close()


def test_half_a_line_is_passed_over(path):
    notes = Notes(path)
    path.write_bytes(b"convict 6\nconvict 61 1e9\n")
    assert list(notes.new()) == [("convict", b"a", 1e9)]
    assert list(notes.new()) == []
    notes.close()


def test_several_workers_have_a_folder_while_they_run_and_a_lone_one_has_none(monkeypatch):
    # set, so that what the block changes is taken back
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "")
    monkeypatch.setenv("TRITON_IMAGE_GATEWAY_WORKERS", "")
    with sharing(1):
        assert shared_file("x") is None
    with sharing(2):
        file = shared_file("x")
        assert file is not None
        assert file.parent.is_dir()
        assert Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]).is_dir()
    assert not file.parent.exists()
