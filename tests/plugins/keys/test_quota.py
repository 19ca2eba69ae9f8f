"""Quotas: their text, the file of keys, and the commands that write it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from gateway_cli.main import app
from gateway_plugins.keys.key_file import KeysError, read_keys
from gateway_plugins.keys.quota import (
    MAX_BURST,
    MAX_NAME_CHARACTERS,
    MAX_NAMES,
    MAX_RATE,
    InvalidQuota,
    read_quota,
)

NAMES = st.lists(st.from_regex(r"[a-z][a-z0-9_.-]{0,9}", fullmatch=True), min_size=1, max_size=5, unique=True)


@given(
    options=st.fixed_dictionaries(
        {},
        optional={
            "rate": st.sampled_from(["100/s", "0.5/s", "600/min", "1/h", "2.25/min"]),
            "share": st.sampled_from(["0.5", "1", "0.01"]),
            "priority": st.sampled_from(["bulk", "interactive"]),
            "models": NAMES.map(",".join),
            "routes": NAMES.map(lambda names: ",".join(f"/{name}" for name in names)),
        },
    )
)
def test_text_of_a_quota_is_read_as_the_same_quota(options):
    quota = read_quota(options)
    assert read_quota(dict(option.split("=") for option in str(quota).split())) == quota


@pytest.mark.parametrize(
    ("text", "per_second", "burst"), [("100/s", 100, 100), ("90/min", 1.5, 2), ("60/h", 1 / 60, 1), ("0.2/s", 0.2, 1)]
)
def test_burst_is_one_second_of_the_rate_by_default(text, per_second, burst):
    rate = read_quota({"rate": text}).rate
    assert (rate.per_second, rate.burst) == (pytest.approx(per_second), burst)
    assert rate.full_seconds == pytest.approx(burst / per_second)


@pytest.mark.parametrize(
    "options",
    [
        {"rate": "tig_pasted"},
        {"rate": "100"},
        {"rate": "0/s"},
        {"rate": "-1/s"},
        {"rate": "1e9/s"},
        {"rate": f"{MAX_RATE + 1}/s"},
        {"rate": "1/s", "burst": "0"},
        {"rate": "1/s", "burst": "1.5"},
        {"rate": "1/s", "burst": "²"},
        {"rate": "1/s", "burst": str(MAX_BURST + 1)},
        {"rate": "1/s", "burst": "9" * 5_000},
        {"burst": "5"},
        {"share": "0"},
        {"share": "1.01"},
        {"share": "nan"},
        {"share": "tig_pasted"},
        {"priority": "tig_pasted"},
        {"models": ""},
        {"models": "a,,b"},
        {"models": "m" * (MAX_NAME_CHARACTERS + 1)},
        {"models": ",".join(f"m{number}" for number in range(MAX_NAMES + 1))},
        {"routes": "predict"},
        {"routes": "/"},
        {"routes": "/predict/"},
        {"tig_pasted": "1"},
    ],
)
def test_unreadable_option_is_an_error_that_does_not_repeat_it(options):
    with pytest.raises(InvalidQuota) as caught:
        read_quota(options)
    assert "pasted" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_options_at_their_limits_can_be_read():
    names = ",".join(f"m{number}".ljust(MAX_NAME_CHARACTERS, "x") for number in range(MAX_NAMES))
    quota = read_quota({"rate": f"{MAX_RATE}/s", "burst": str(MAX_BURST), "share": "1", "models": names})
    assert (quota.rate.per_second, quota.rate.burst, quota.share) == (MAX_RATE, MAX_BURST, 1)
    assert len(quota.models) == MAX_NAMES


def test_routes_include_all_below_them_and_nothing_beside():
    quota = read_quota({"routes": "/predict,/v2"})
    assert [path for path in ("/predict", "/v2", "/v2/models/{name}/infer") if not quota.allows_route(path)] == []
    assert [path for path in ("/predictx", "/v20", "/embed", "/") if quota.allows_route(path)] == []


cli = CliRunner()


@pytest.mark.parametrize("options", ["rate=tig_pasted", "tig_pasted", "tig_pasted=1", "share=1 share=1", "burst=5"])
def test_error_in_a_quota_names_the_line_and_does_not_repeat_it(path, options):
    path.write_text(f"a:{'0' * 64}\nb:{'1' * 64} {options}\n")
    with pytest.raises(KeysError, match=r"^line 2 of ") as caught:
        read_keys(path)
    assert "pasted" not in str(caught.value)


def test_command_adds_a_key_with_a_quota_and_lists_it(path):
    options = ["--rate", "90/min", "--burst", "4", "--share", "0.5", "--priority", "bulk", "--models", "a,b"]
    made = cli.invoke(app, ["key", "add", "team", "--routes", "/predict", *options, "--file", str(path)])
    assert read_keys(path).name_of(made.stdout.strip().encode()) == "team"
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
