"""Quotas in the file of keys, and in the commands that write it."""

import hashlib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.keys import KeysError, add_key, read_keys
from gateway_cli.main import app
from gateway_plugins.tenants.quota import Quota, read_quota

cli = CliRunner()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def test_quota_follows_the_hash(path):
    add_key(path, "plain")
    key = add_key(path, "mobile", read_quota({"rate": "100/s", "share": "0.5", "models": "cats,dogs"}))
    assert path.read_text().splitlines()[1] == (
        f"mobile:{hashlib.sha256(key.encode()).hexdigest()} rate=100/s burst=100 share=0.5 models=cats,dogs"
    )
    keys = read_keys(path, read_quota)
    assert keys.name_of(key.encode()) == "mobile"
    assert list(keys.options) == ["mobile"]
    quota = keys.options["mobile"]
    assert isinstance(quota, Quota)
    assert quota.models == ("cats", "dogs")


@pytest.mark.parametrize("options", ["rate=tig_pasted", "tig_pasted", "tig_pasted=1", "share=1 share=1", "burst=5"])
def test_error_in_a_quota_names_the_line_and_does_not_repeat_it(path, options):
    path.write_text(f"a:{'0' * 64}\nb:{'1' * 64} {options}\n")
    with pytest.raises(KeysError, match=r"^line 2 of ") as caught:
        read_keys(path, read_quota)
    assert "pasted" not in str(caught.value)


def test_command_adds_a_key_with_a_quota_and_lists_it(path):
    options = ["--rate", "90/min", "--burst", "4", "--share", "0.5", "--priority", "bulk", "--models", "a,b"]
    made = cli.invoke(app, ["key", "add", "team", "--routes", "/predict", *options, "--file", str(path)])
    assert read_keys(path, read_quota).name_of(made.stdout.strip().encode()) == "team"
    quota = "rate=90/min burst=4 share=0.5 priority=bulk models=a,b routes=/predict"
    assert cli.invoke(app, ["key", "list", "--file", str(path)]).stdout == f"team {quota}\n"
    assert cli.invoke(app, ["key", "add", "plain", "--file", str(path)]).exit_code == 0
    assert cli.invoke(app, ["key", "list", "--file", str(path)]).stdout.splitlines()[1] == "plain"


@pytest.mark.parametrize(
    ("option", "value"), [("--rate", "100"), ("--share", "2"), ("--burst", "3"), ("--models", ","), ("--routes", "v2")]
)
def test_command_refuses_a_quota_and_names_the_option(path, option, value):
    failed = cli.invoke(app, ["key", "add", "team", option, value, "--file", str(path)])
    assert str(failed.exception).startswith(option)
    assert not path.exists()
