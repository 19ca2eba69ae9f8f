"""Settings from variables and .env: an invalid value stops the start, and its error names the allowed values."""

import os
import re
from pathlib import Path

import pytest
from pydantic import Field, SecretStr, ValidationError

from gateway.environment import SettingsError, allowed, load_settings
from gateway.plugin_loading import environment_of
from gateway.settings import MIB, is_secret, variable
from tests.processes import PROJECT
from tests.settings import Settings


@pytest.fixture(autouse=True)
def _no_settings_but_the_test_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for name in [name for name in os.environ if name.upper().startswith("GATEWAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def refusal(monkeypatch: pytest.MonkeyPatch, **variables: object) -> str:
    for field, value in variables.items():
        monkeypatch.setenv(variable(field), str(value))
    with pytest.raises(SettingsError) as caught:
        load_settings()
    return str(caught.value)


def test_variables_take_precedence_over_the_env_file(monkeypatch, tmp_path):
    """What Docker Compose and other commands read may be in .env, too."""
    others = "TRITON_IMAGE=elsewhere\nGATEWAY_DEVICES=0\nGATEWAY_API_KEY=k\n"
    (tmp_path / ".env").write_text(f"GATEWAY_PORT=9000\nGATEWAY_WORKERS=2\n{others}")
    for name, value in {"gateway_port": "9001", "GATEWAY_MAX_FILE_BYTES": str(5 * MIB), "GATEWAYS_PORT": "x"}.items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert (settings.port, settings.workers, settings.max_file_bytes) == (9001, 2, 5 * MIB)


@pytest.mark.parametrize(
    ("env_file", "variables", "words"),
    [
        ("", {"max_file_byte": 1}, "GATEWAY_MAX_FILE_BYTE is not a setting: did you mean GATEWAY_MAX_FILE_BYTES?"),
        ("", {"zzz": 1}, "GATEWAY_ZZZ is not a setting: docs/reference/settings.md lists all of them"),
        ("GATEWAY_PROT=9000\n", {}, "GATEWAY_PROT in .env is not a setting: did you mean GATEWAY_PORT?"),
        ("GATEWAY_PORT=http\n", {}, "GATEWAY_PORT='http' in .env: must be a whole number from 1 to 65535"),
        ("", {"max_file_bytes": "20GB"}, "GATEWAY_MAX_FILE_BYTES='20GB': must be"),
        ("", {"triton_url": "triton"}, "127.0.0.1:8001"),
        (
            "",
            {"max_request_bytes": MIB},
            "GATEWAY_MAX_FILE_BYTES=20971520 (its default) is above GATEWAY_MAX_REQUEST_BYTES",
        ),
        ("", {"max_headers": 7}, "GATEWAY_MAX_HEADERS is not a setting"),
        ("GATEWAY_MAX_IMAGES_WAITING=7\n", {}, "GATEWAY_MAX_IMAGES_WAITING in .env is not a setting"),
        *(
            ("", {"max_file_bytes": text}, "must be a whole number from 1 to 1073741824")
            for text in ("20 MiBs", "20 s", "1.0000001 KiB", "1,00", "MiB", "-1 MiB")
        ),
        *(  # of a Service in Kubernetes
            ("", {name: "10.0.0.1"}, "enableServiceLinks: false")
            for name in ("service_host", "service_port_http", "port_8080_tcp_addr")
        ),
    ],
)
def test_error_names_what_is_wrong_and_what_to_do(monkeypatch, tmp_path, env_file, variables, words):
    (tmp_path / ".env").write_text(env_file)
    assert words in refusal(monkeypatch, **variables)


@pytest.mark.parametrize(
    ("field", "value", "may_be"),
    [
        ("port", "0", "a whole number from 1 to 65535"),
        ("default_timeout_seconds", "nan", "a number above 0 up to 3600"),
        ("shutdown_grace_seconds", "soon", "a number from 1 to 3600"),
        ("decode", "sometimes", "auto, always or never"),
        ("model", "", "text of 1 to 256 characters"),
        ("api_keys_file", "", "the path of a file; leave it unset for an API without keys"),
    ],
)
def test_invalid_value_error_names_variable_value_and_range(monkeypatch, field, value, may_be):
    assert refusal(monkeypatch, **{field: value}) == f"{variable(field)}={value!r}: must be {may_be}"


def test_every_setting_is_described_and_every_limit_published():
    """By GET /limits, and in docs/reference/settings.md: mark a limit by Limit."""
    fields = Settings.model_fields
    assert [field for field in fields if not fields[field].description] == []
    assert [field for field in Settings.variables() if not allowed(field)] == []
    assert {field for field in fields if field.startswith(("max_", "min_"))} - set(Settings.limits()) == set()


def test_every_invalid_variable_has_its_own_line(monkeypatch):
    lines = refusal(monkeypatch, port="x", workers="y", prot="z").splitlines()
    names = {line.partition("=")[0].partition(" ")[0] for line in lines}
    assert names == {"GATEWAY_PORT", "GATEWAY_WORKERS", "GATEWAY_PROT"}


def test_computed_values_follow_the_settings_and_are_passed_to_other_processes(monkeypatch):
    monkeypatch.setenv("GATEWAY_MAX_IMAGES_IN_FLIGHT", "128")
    monkeypatch.setenv("GATEWAY_MAX_FILE_BYTES", "500 MiB")
    settings = load_settings()
    assert (settings.max_images_waiting, settings.max_bytes_waiting) == (128, 500 * MIB)
    for name, value in environment_of({"workers": 2, "max_images_waiting": 3, "max_connections": 4}).items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert (settings.workers, settings.max_images_waiting, settings.max_connections) == (2, 3, 4)
    for name, value in environment_of({"max_connections": 5}).items():
        monkeypatch.setenv(name, value)
    assert (load_settings().max_images_waiting, load_settings().max_connections) == (3, 5)


NOT_ABOVE = Settings.pairs("not_above")
CONTRADICTIONS = {
    "default_timeout_seconds": (11, 10),
    "max_file_bytes": (20 * MIB, 10 * MIB),
}


@pytest.mark.parametrize(("low", "high"), NOT_ABOVE)
def test_contradiction_error_names_both_settings(monkeypatch, low, high):
    """Equal ones do not contradict each other."""
    larger, smaller = CONTRADICTIONS[low]
    for field in (low, high):
        monkeypatch.setenv(variable(field), str(smaller))
    settings = load_settings()
    assert getattr(settings, low) == getattr(settings, high)
    line = refusal(monkeypatch, **{low: larger, high: smaller})
    number = type(getattr(Settings.model_construct(), low))
    assert line == (
        f"{variable(low)}={number(larger)} is above {variable(high)}={number(smaller)}: "
        f"lower the first to at most {number(smaller)}, or raise the second to at least {number(larger)}"
    )


@pytest.mark.parametrize(
    ("field", "given", "value"),
    [
        ("cors_origins", "", ()),
        (
            "cors_origins",
            " https://A.example , http://localhost:3000,",
            ("https://a.example", "http://localhost:3000"),
        ),
        ("max_file_bytes", "20 MiB", 20 * 2**20),
        ("max_file_bytes", "20MB", 20_000_000),
        ("max_file_bytes", "1.5 MiB", 3 * 2**19),
        ("max_file_bytes", "12,345", 12_345),
        ("default_timeout_seconds", "2.5 s", 2.5),
        ("max_image_pixels", "50,000,000", 50_000_000),
    ],
)
def test_lists_are_separated_and_numbers_may_have_units(monkeypatch, field, given, value):
    monkeypatch.setenv(variable(field), given)
    assert getattr(load_settings(), field) == value


NO_ORIGINS = ("a.example", "https://a.example/", "https://*.example", "null", "ftp://a.example", "*,https://a.example")
NO_PREFIXES = ("a.example", "https://a.example/?x", "ftp://a.example", "https://a.example,s3://*", "https://a b")


@pytest.mark.parametrize(
    ("field", "given", "words", "end"),
    [
        *(("cors_origins", given, "", "") for given in NO_ORIGINS),
        *(("fetch_urls", given, "a prefix is such as", "https://*.example.com") for given in NO_PREFIXES),
        *(("fetch_networks", given, "is not a network", "fd00:1234::/48") for given in ("10.0.0.1/8", "10.0.0", "*")),
    ],
)
def test_invalid_list_error_names_its_variable_and_has_an_example(monkeypatch, field, given, words, end):
    line = refusal(monkeypatch, **{field: given})
    assert line.startswith(f"{variable(field)}={given!r}: ")
    assert words in line
    assert line.endswith(end)


def test_documented_defaults_are_valid_values(monkeypatch):
    page = (PROJECT / "docs" / "reference" / "settings.md").read_text()
    rows = re.findall(r"^\| `(GATEWAY_\w+)` \| ([^ |][^|]*) \|", page, re.MULTILINE)
    assert len(rows) > 30
    for name, default in rows:
        monkeypatch.setenv(name, default)
    fields = {name.removeprefix("GATEWAY_").lower() for name, _ in rows}
    assert load_settings().model_dump(include=fields) == Settings(_env_file=None).model_dump(include=fields)


class OneBound(Settings):
    """Settings of a stranger's plug-in."""

    needs = (("one_named", "one_other"),)

    one_text: str = Field("", max_length=3)
    one_most: int = Field(1, le=3)
    one_above: float = Field(1, gt=0.5)
    one_secret: SecretStr = SecretStr("in clear")
    one_named: str = "by default"
    one_other: str = ""


def test_settings_of_others_may_have_one_bound_a_secret_and_defaults(monkeypatch):
    """The default of `one_named` is not set by anybody, so it does not need `one_other`."""
    monkeypatch.setattr("gateway.environment.settings_class", lambda: OneBound)
    assert allowed("one_text") == "text of 0 to 3 characters"
    assert [allowed(name) for name in ("one_most", "one_above")] == ["a whole number up to 3", "a number above 0.5"]
    assert is_secret(OneBound, "one_secret")
    assert OneBound(_env_file=None).one_other == ""
    with pytest.raises(ValidationError, match="GATEWAY_ONE_NAMED needs GATEWAY_ONE_OTHER"):
        OneBound(_env_file=None, one_named="x")
