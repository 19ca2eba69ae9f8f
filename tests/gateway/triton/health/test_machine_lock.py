"""One gateway of a user on a machine heals a Triton at a time, and no other user can keep it from that."""

from pathlib import Path

from gateway.triton.health.machine_lock import lock_folder, machine_lock


def test_one_has_its_turn_and_the_next_one_after_it(tmp_path):
    with (
        machine_lock("triton:8001", tmp_path) as mine,
        machine_lock("triton:8001", tmp_path) as other,
        machine_lock("another:8001", tmp_path) as elsewhere,
    ):
        assert (mine, other, elsewhere) == (True, False, True)
    with machine_lock("triton:8001", tmp_path) as mine:
        assert mine


def test_the_folder_belongs_to_the_user_alone(tmp_path):
    folder = tmp_path / "new"
    with machine_lock("triton:8001", folder):
        assert folder.stat().st_mode & 0o077 == 0


def test_the_folder_is_not_the_shared_one_for_temporary_files():
    assert lock_folder({"XDG_RUNTIME_DIR": "/run/user/7"}) == Path("/run/user/7/triton-image-gateway")
    assert lock_folder({"XDG_CACHE_HOME": "/var/cache"}) == Path("/var/cache/triton-image-gateway/locks")
    assert lock_folder({}) == Path.home() / ".cache" / "triton-image-gateway" / "locks"


def test_where_no_folder_can_be_made_everybody_has_a_turn(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with machine_lock("triton:8001", file / "folder") as mine, machine_lock("triton:8001", file / "folder") as other:
        assert mine
        assert other
