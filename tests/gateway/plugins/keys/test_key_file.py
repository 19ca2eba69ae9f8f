"""The file of API keys and their quotas, and the commands that write it."""

import hashlib
import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.findings import Level
from gateway.plugins.keys import doctor
from gateway.plugins.keys.key_file import KeyFile, KeysError, add_key, read_keys
from gateway.plugins.keys.quota import MAX_NAME_CHARACTERS, MAX_NAMES, Priority, Rate, read_quota
from tests.commands import gateway, refusal
from tests.keys import remove_key


def test_key_is_recognised_among_many_by_its_hash(path):
    keys = {name: add_key(path, name) for name in ("first", "second", "third")}
    hashes = {name: hashlib.sha256(key.encode()).hexdigest() for name, key in keys.items()}
    assert path.read_text() == "".join(f"{name}:{stored}\n" for name, stored in hashes.items())
    for name, key in keys.items():
        assert read_keys(path).name_of(key.encode()) == name
        for other in (key[:-1], f"{key}x", key.upper(), "", hashes[name]):
            assert read_keys(path).name_of(other.encode()) is None


def test_owner_alone_may_read_a_new_file_and_the_mode_of_another_one_stays(path, tmp_path):
    """Also behind a symbolic link."""
    add_key(tmp_path / "real", "mobile")
    assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == 0o600
    (tmp_path / "real").chmod(0o640)
    path.symlink_to(tmp_path / "real")
    add_key(path, "web")
    assert path.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert set(read_keys(tmp_path / "real").digests) == {"mobile", "web"}


def test_new_key_keeps_comments_and_ends_the_last_line(path):
    path.write_text("# the phones\n\nmobile:" + "0" * 64)
    add_key(path, "web")
    first, second, third, fourth = path.read_text().splitlines()
    assert (first, second, third) == ("# the phones", "", "mobile:" + "0" * 64)
    assert fourth.startswith("web:")


def test_concurrent_additions_lose_no_key(path):
    names = [f"client-{number}" for number in range(20)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: add_key(path, name), names))
    assert sorted(read_keys(path).digests) == sorted(names)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *((name, "cannot be a key's name") for name in ("", "a:b", "a b", "a\nb", "-a", "é", "a" * 65)),
        ("mobile", "there is a key named mobile"),
    ],
)
def test_invalid_or_duplicate_name_is_refused(path, name, words):
    add_key(path, "mobile")
    with pytest.raises(KeysError, match=words):
        add_key(path, name)
    assert list(read_keys(path).digests) == ["mobile"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("tig_pasted-by-mistake", 1),
        ("a:" + "0" * 64 + "\ntig_pasted-by-mistake", 2),
        ("a:tig_pasted-by-mistake", 1),
        ("a:" + "0" * 63, 1),
        ("a:" + "0" * 64 + "\na:" + "1" * 64, 2),
        *(
            (f"a:{'0' * 64}\nb:{'1' * 64} {quota}\n", 2)
            for quota in ("rate=tig_pasted", "tig_pasted", "tig_pasted=1", "share=1 share=1", "burst=5")
        ),
    ],
)
def test_error_names_the_number_of_an_invalid_line_only(path, text, line):
    path.write_text(text)
    with pytest.raises(KeysError, match=rf"^line {line} of ") as caught:
        read_keys(path)
    assert "pasted" not in str(caught.value)


def test_unreadable_file_is_an_error(path, tmp_path):
    """A missing one with the command that creates it."""
    path.write_bytes(b"\xff\xfe\x00")
    words, missing = "cannot read the API keys", tmp_path / "none"
    for each, reason in ((path, words), (tmp_path, words), (missing, f"gateway key add NAME --file {missing}")):
        with pytest.raises(KeysError, match=re.escape(reason)):
            read_keys(each)


def test_file_is_read_again_once_it_has_changed(path):
    """Also within one second, and when its last key is removed."""
    key = add_key(path, "first").encode()
    file = KeyFile(path)
    assert file.keys is file.keys
    assert file.keys.name_of(key) == "first"
    path.write_text(path.read_text().replace("first", "other"))
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert file.keys.name_of(key) == "other"
    remove_key(path, "other")
    assert file.keys.name_of(key) is None


@pytest.mark.parametrize("damage", [lambda path: path.write_text("half a li"), Path.unlink])
def test_damaged_file_keeps_the_old_keys_and_is_logged_once(path, damage, capfd):
    key = add_key(path, "first")
    file = KeyFile(path)
    damage(path)
    assert [file.keys.name_of(key.encode()) for _ in range(3)] == ["first"] * 3
    said = "".join(capfd.readouterr())
    assert said.count("api_keys_unchanged") == 1
    assert key not in said


def test_command_adds_a_key_with_its_quota(path, tmp_path, monkeypatch):
    quota = [
        "rate=90/min",
        "per-day=500",
        "per-month=9000",
        "share=0.5",
        "priority=bulk",
        "models=a,b",
        "routes=/predict",
    ]
    plain = gateway("key", "add", "mobile", GATEWAY_API_KEYS_FILE=str(path))
    limited = gateway("key", "add", "team", *quota, "--file", path)
    keys = read_keys(path)
    for name, made in (("mobile", plain), ("team", limited)):
        assert keys.name_of(made.stdout.strip().encode()) == name
        assert made.stdout.strip() not in made.stderr
    (team,) = keys.quotas.values()
    assert (team.rate, team.share, team.priority) == (Rate(90, "min"), 0.5, Priority.BULK)
    assert team.periods == {"day": 500, "month": 9000}
    assert (team.models, team.routes) == (("a", "b"), ("/predict",))
    monkeypatch.delenv("GATEWAY_API_KEYS_FILE", raising=False)
    monkeypatch.chdir(tmp_path)
    assert "GATEWAY_API_KEYS_FILE" in refusal("key", "add", "web", kind=KeysError)


def test_admin_key_with_a_quota_is_refused(path):
    add_key(path, "ops")
    assert list(read_keys(path, admin=True).digests) == ["ops"]
    add_key(path, "slow", ["rate=1/s"])
    with pytest.raises(KeysError, match=r"slow .* GATEWAY_API_KEYS_FILE"):
        read_keys(path, admin=True)


@pytest.mark.parametrize(
    ("text", "mode", "level", "words"),
    [
        (None, 0o600, Level.FAIL, ""),
        ("half a li", 0o600, Level.FAIL, ""),
        ("", 0o600, Level.WARN, "gateway key add"),
        (f"mobile:{'0' * 64}\n", 0o644, Level.WARN, "chmod o-r "),
        (f"mobile:{'0' * 64}\n", 0o600, Level.OK, "1 in "),
    ],
    ids=["missing", "damaged", "empty", "readable", "right"],
)
def test_doctor_checks_key_files(path, text, mode, level, words):
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    for admin, name in ((False, "API keys"), (True, "admin keys")):
        finding = doctor.key_file(path, admin=admin)
        assert (finding.check, finding.level) == (name, level)
        assert words in finding.text + finding.advice


UNREADABLE = {
    "rate": ["tig_pasted", "100", "0/s", "-1/s", "1e9/s", "1.5/s", "²/s", "1/day", "1000000000/s", "9" * 5_000 + "/s"],
    "per-day": ["0", "1000000000"],
    "per_day": ["1"],
    "per-month": ["tig_pasted", "1.5"],
    "share": ["0", "1.01", "nan", "tig_pasted", " 0.5", "0.5\n"],
    "priority": ["tig_pasted"],
    "models": ["", "a,,b", "m" * (MAX_NAME_CHARACTERS + 1), ",".join(f"m{n}" for n in range(MAX_NAMES + 1))],
    "routes": ["predict", "/", "/predict/"],
    "tig_pasted": ["1"],
}


@pytest.mark.parametrize(("option", "value"), [(name, each) for name, values in UNREADABLE.items() for each in values])
def test_unreadable_option_is_an_error_that_does_not_repeat_it(path, option, value):
    with pytest.raises(KeysError) as caught:
        add_key(path, "team", [f"{option}={value}"])
    assert not path.exists()
    assert "pasted" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_routes_include_all_below_them_and_nothing_beside():
    quota = read_quota(["routes=/predict,/v2"])
    assert [path for path in ("/predict", "/v2", "/v2/models/{name}/infer") if not quota.allows_route(path)] == []
    assert [path for path in ("/predictx", "/v20", "/embed", "/") if quota.allows_route(path)] == []
