import stat
import threading

import pytest

from gateway.values.files import locked, whole_file


@pytest.mark.parametrize(("name", "left"), [("lock", ["lock"]), (".", [])], ids=["file", "folder"])
def test_lock_is_exclusive_and_released_with_its_context(tmp_path, name, left):
    """A folder that is locked stays empty."""
    path = tmp_path / name
    with locked(path) as first, locked(path, busy=lambda: False) as second:
        assert (first, second) == (True, False)
    with locked(path, busy=lambda: False) as later:
        assert later
    assert [each.name for each in tmp_path.iterdir()] == left


def test_wait_for_a_lock_is_announced_and_ends_with_its_release(tmp_path):
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with locked(tmp_path / "lock"):
            held.set()
            release.wait(60)

    def busy() -> bool:
        announced.append("waiting")
        release.set()
        return True

    announced: list[str] = []
    # A lock belongs to what was opened, so that two threads are as good as two processes.
    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert held.wait(60)
        with locked(tmp_path / "lock", busy=busy) as mine:
            assert mine
    finally:
        release.set()
        holder.join(60)
    assert announced == ["waiting"]


def test_file_is_replaced_once_complete(tmp_path):
    target = tmp_path / "file"
    target.write_text("old")
    with whole_file(target, mode=0o640, sync=True) as draft:
        draft.write_text("new")
        assert target.read_text() == "old"
        assert stat.S_IMODE(draft.stat().st_mode) == 0o600
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [target]


def test_mode_of_a_new_file_follows_the_umask(tmp_path):
    (tmp_path / "ordinary").touch()
    with whole_file(tmp_path / "whole"):
        pass
    assert (tmp_path / "whole").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


def test_failed_write_keeps_the_old_file_and_no_temporary_file(tmp_path):
    target = tmp_path / "file"
    target.write_text("old")
    with pytest.raises(UnicodeEncodeError), whole_file(target) as draft, draft.open("w", encoding="ascii") as file:
        file.writelines(["ne", "ẅ"])
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
