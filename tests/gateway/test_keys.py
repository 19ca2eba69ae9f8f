"""The file of API keys, and the commands that write it."""

import hashlib
import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.keys import KeyFile, KeysError, add_key, new_key, read_keys, remove_key
from gateway_cli.main import app

cli = CliRunner()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def test_a_key_has_256_random_bits():
    key = new_key()
    assert re.fullmatch(r"tig_[A-Za-z0-9_-]{43}", key)
    assert len({new_key() for _ in range(1000)}) == 1000


def test_a_key_that_was_made_is_known_by_its_name(path):
    key = add_key(path, "mobile")
    assert read_keys(path).name_of(key.encode()) == "mobile"


def test_a_key_is_known_among_many(path):
    keys = {name: add_key(path, name) for name in ("first", "second", "third")}
    for name, key in keys.items():
        assert read_keys(path).name_of(key.encode()) == name


@pytest.mark.parametrize("change", [lambda key: key[:-1], lambda key: f"{key}x", str.upper, lambda key: ""])
def test_a_key_that_is_not_quite_right_is_not_known(path, change):
    key = add_key(path, "mobile")
    assert read_keys(path).name_of(change(key).encode()) is None


def test_a_hash_is_no_key(path):
    add_key(path, "mobile")
    assert read_keys(path).name_of(path.read_text().strip().partition(":")[2].encode()) is None


def test_every_hash_is_compared_whichever_matches(path, monkeypatch):
    keys = [add_key(path, name) for name in ("first", "second", "third")]
    known, compared = read_keys(path), []
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: compared.append(b) or a == b)
    for key in (*keys, "unknown"):
        compared.clear()
        known.name_of(key.encode())
        assert compared == list(known.digests.values())


def test_the_file_holds_the_hash_and_not_the_key(path):
    key = add_key(path, "mobile")
    assert path.read_text() == f"mobile:{hashlib.sha256(key.encode()).hexdigest()}\n"


def test_only_its_owner_reads_a_new_file(path):
    add_key(path, "mobile")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_mode_that_an_operator_gave_the_file_is_kept(path):
    add_key(path, "mobile")
    path.chmod(0o640)
    add_key(path, "web")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_comments_and_a_missing_end_of_line_survive_a_new_key(path):
    path.write_text("# the phones\n\nmobile:" + "0" * 64)
    add_key(path, "web")
    first, second, third, fourth = path.read_text().splitlines()
    assert (first, second, third) == ("# the phones", "", "mobile:" + "0" * 64)
    assert fourth.startswith("web:")


def test_a_link_stays_a_link(path, tmp_path):
    add_key(tmp_path / "real", "mobile")
    path.symlink_to(tmp_path / "real")
    add_key(path, "web")
    assert path.is_symlink()
    assert set(read_keys(tmp_path / "real").digests) == {"mobile", "web"}


def test_no_key_is_lost_when_several_are_made_at_once(path):
    names = [f"client-{number}" for number in range(20)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: add_key(path, name), names))
    assert sorted(read_keys(path).digests) == sorted(names)


def test_no_draft_is_left_behind(path):
    add_key(path, "mobile")
    remove_key(path, "mobile")
    assert [entry.name for entry in path.parent.iterdir()] == ["keys"]


def test_a_removed_key_is_not_known_and_the_others_are(path):
    removed, kept = add_key(path, "mobile"), add_key(path, "mobile-2")
    remove_key(path, "mobile")
    assert read_keys(path).name_of(removed.encode()) is None
    assert read_keys(path).name_of(kept.encode()) == "mobile-2"


@pytest.mark.parametrize("name", ["", "a:b", "a b", "a\nb", "-a", "é", "a" * 65])
def test_a_name_that_would_break_the_file_or_a_log_is_refused(path, name):
    with pytest.raises(KeysError, match="cannot be a key's name"):
        add_key(path, name)
    assert not path.exists()


def test_a_name_is_used_once(path):
    add_key(path, "mobile")
    with pytest.raises(KeysError, match="there is a key named mobile"):
        add_key(path, "mobile")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("tig_pasted-by-mistake", 1),
        ("a:" + "0" * 64 + "\ntig_pasted-by-mistake", 2),
        ("a:tig_pasted-by-mistake", 1),
        ("a:" + "0" * 63, 1),
        ("a:" + "0" * 64 + "\na:" + "1" * 64, 2),
    ],
)
def test_a_bad_line_is_named_by_its_number_and_not_by_what_is_in_it(path, text, line):
    path.write_text(text)
    with pytest.raises(KeysError, match=rf"^line {line} of ") as caught:
        read_keys(path)
    assert "pasted" not in str(caught.value)


def test_a_file_that_is_not_there_says_how_to_make_one(path):
    with pytest.raises(KeysError, match=re.escape(f"gateway key new --file {path}")):
        read_keys(path)


def test_a_folder_and_a_file_of_bytes_are_no_key_files(path, tmp_path):
    path.write_bytes(b"\xff\xfe\x00")
    for each in (path, tmp_path):
        with pytest.raises(KeysError, match="cannot read the API keys"):
            read_keys(each)


def test_a_key_made_later_is_let_in_and_a_removed_one_is_not(path):
    first = add_key(path, "first")
    file = KeyFile(path)
    second = add_key(path, "second")
    assert file.keys.name_of(second.encode()) == "second"
    remove_key(path, "first")
    assert file.keys.name_of(first.encode()) is None


def test_the_last_key_can_be_taken_away(path):
    key = add_key(path, "first")
    file = KeyFile(path)
    remove_key(path, "first")
    assert file.keys.name_of(key.encode()) is None


def test_a_change_in_place_within_one_second_is_seen(path):
    key = add_key(path, "first")
    file = KeyFile(path)
    assert file.keys.name_of(key.encode()) == "first"
    path.write_text(path.read_text().replace("first", "other"))
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert file.keys.name_of(key.encode()) == "other"


@pytest.mark.parametrize("damage", [lambda path: path.write_text("half a li"), Path.unlink])
def test_a_broken_new_file_keeps_the_old_keys_and_logs_an_error_once(path, damage, capfd):
    key = add_key(path, "first")
    file = KeyFile(path)
    damage(path)
    assert [file.keys.name_of(key.encode()) for _ in range(3)] == ["first"] * 3
    said = "".join(capfd.readouterr())
    assert said.count("api_keys_unchanged") == 1
    assert key not in said


def test_the_file_is_read_only_when_it_changes(path, monkeypatch):
    add_key(path, "first")
    file, read = KeyFile(path), []
    monkeypatch.setattr("gateway.keys.read_keys", lambda path: read.append(path))
    assert file.keys is file.keys
    assert read == []


def test_the_command_prints_a_key_alone_on_stdout_and_its_name_is_listed(path):
    made = cli.invoke(app, ["key", "new", "--name", "mobile", "--file", str(path)])
    assert read_keys(path).name_of(made.stdout.strip().encode()) == "mobile"
    assert made.stdout.strip() not in made.stderr
    assert cli.invoke(app, ["key", "list", "--file", str(path)]).stdout == "mobile\n"
    assert cli.invoke(app, ["key", "remove", "mobile", "--file", str(path)]).exit_code == 0
    assert cli.invoke(app, ["key", "list", "--file", str(path)]).stdout == ""


def test_the_commands_find_the_file_by_its_setting(path, monkeypatch):
    monkeypatch.setenv("GATEWAY_API_KEYS_FILE", str(path))
    assert cli.invoke(app, ["key", "new", "--name", "mobile"]).exit_code == 0
    assert "mobile" in read_keys(path).digests


def test_without_a_file_the_commands_ask_for_one(monkeypatch, tmp_path):
    monkeypatch.delenv("GATEWAY_API_KEYS_FILE", raising=False)
    monkeypatch.chdir(tmp_path)
    failed = cli.invoke(app, ["key", "list"])
    assert isinstance(failed.exception, KeysError)
    assert "GATEWAY_API_KEYS_FILE" in str(failed.exception)
