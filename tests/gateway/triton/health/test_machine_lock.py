"""One gateway of a user on a machine reloads the models of a Triton at a time; other users cannot block it."""

from pathlib import Path

from gateway.triton.health.reloading import lock_folder, machine_lock


def test_lock_is_held_by_one_and_then_the_next(tmp_path):
    with (
        machine_lock("triton:8001", tmp_path) as mine,
        machine_lock("triton:8001", tmp_path) as other,
        machine_lock("another:8001", tmp_path) as elsewhere,
    ):
        assert (mine, other, elsewhere) == (True, False, True)
    with machine_lock("triton:8001", tmp_path) as mine:
        assert mine


def test_lock_folder_is_private_to_the_user(tmp_path):
    folder = tmp_path / "new"
    with machine_lock("triton:8001", folder):
        assert folder.stat().st_mode & 0o077 == 0


def test_lock_folder_is_not_a_shared_temporary_folder():
    assert lock_folder({"XDG_RUNTIME_DIR": "/run/user/7"}) == Path("/run/user/7/triton-image-gateway")
    assert lock_folder({"XDG_CACHE_HOME": "/var/cache"}) == Path("/var/cache/triton-image-gateway/locks")
    assert lock_folder({}) == Path.home() / ".cache" / "triton-image-gateway" / "locks"


def test_every_process_gets_the_lock_without_a_folder(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with machine_lock("triton:8001", file / "folder") as mine, machine_lock("triton:8001", file / "folder") as other:
        assert mine
        assert other
