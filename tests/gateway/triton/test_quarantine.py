"""Images that crash processes are remembered by all workers, for a limited time and up to a limited number."""

import os
from pathlib import Path

import pytest

from gateway.server.workers import shared_file, sharing
from gateway.triton import quarantine as module
from gateway.triton.quarantine import Notes, Quarantine
from tests.doubles.clock import Clock


def test_quarantine_is_bounded_and_drops_the_oldest(monkeypatch):
    monkeypatch.setattr(module, "REMEMBERED", 3)
    quarantine = Quarantine(60, Clock())
    quarantine.suspect(bytes([number]) for number in range(5))
    assert [quarantine.is_suspect(bytes([number])) for number in range(5)] == [False, False, True, True, True]


def test_flood_of_suspects_displaces_no_refused_image(monkeypatch):
    """An attacker can make any number of suspects, but each refused image costs a crash of its own."""
    monkeypatch.setattr(module, "REMEMBERED", 3)
    quarantine = Quarantine(60, Clock())
    quarantine.refuse(b"killer")
    quarantine.suspect(bytes([number]) for number in range(100))
    assert quarantine.is_refused(b"killer")
    for number in range(3):
        quarantine.refuse(bytes([number]))
    assert not quarantine.is_refused(b"killer"), "the oldest is forgotten, and may end two processes again"
    assert [quarantine.is_refused(bytes([number])) for number in range(4)] == [True, True, True, False]


def test_quarantine_can_be_turned_off():
    quarantine = Quarantine(0)
    quarantine.suspect([b"a"])
    quarantine.refuse(b"a")
    assert not quarantine.is_suspect(b"a")
    assert not quarantine.is_refused(b"a")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "quarantine"


def test_notes_are_shared_by_all_workers(path):
    now = 100.0
    one, other = (Quarantine(60, lambda: now, Notes(path)) for _ in range(2))
    one.suspect([b"a", b"b", b"c"])
    assert [other.is_suspect(code) for code in (b"a", b"b", b"c", b"d")] == [True, True, True, False]
    other.clear(b"a")
    other.refuse(b"b")
    new = Quarantine(60, lambda: now, Notes(path))
    for worker in (one, other, new):
        assert [worker.is_suspect(code) for code in (b"a", b"b", b"c")] == [False, False, True]
        assert [worker.is_refused(code) for code in (b"a", b"b", b"c")] == [False, True, False]
    now += 60
    assert not one.is_suspect(b"c")
    assert not one.is_refused(b"b")
    for worker in (one, other, new):
        worker.close()


def test_answers_write_no_note_and_the_file_is_bounded(path, monkeypatch):
    notes = Notes(path)
    quarantine = Quarantine(60, notes=notes)
    for number in range(100):
        quarantine.clear(bytes([number]))
    assert path.stat().st_size == 0
    monkeypatch.setattr(module, "MOST_BYTES", 200)
    quarantine.suspect(bytes([number]) for number in range(100))
    assert 200 <= path.stat().st_size < 300
    assert quarantine.is_suspect(bytes([99])), "it is remembered here all the same"
    quarantine.close()


def test_workers_are_independent_without_a_file(tmp_path):
    quarantine = Quarantine(60, notes=Notes(tmp_path / "no folder" / "file"))
    quarantine.refuse(b"a")
    assert quarantine.is_refused(b"a")
    quarantine.close()


def test_truncated_line_is_ignored(path):
    notes = Notes(path)
    path.write_bytes(b"refuse 6\nrefuse 61 1e9\n")
    assert list(notes.new()) == [("refuse", b"a", 1e9)]
    assert list(notes.new()) == []
    notes.close()


def test_only_multiple_workers_have_a_shared_folder(monkeypatch):
    # set first, so that the change inside the block is undone
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
