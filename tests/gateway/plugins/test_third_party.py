"""The core without plug-ins, and plug-ins of others: the guide's and the examples, installed from a folder."""

import inspect
import os
import re
from importlib import import_module
from pathlib import Path

import pytest

from gateway import __version__, hooks
from gateway.app import create_app
from gateway.command_line.main import GROUP
from gateway.environment import load_settings
from gateway.hooks import Plugin, PluginFailed
from gateway.plugin_loading import listings
from gateway.settings import Settings
from tests import warm
from tests.doubles.backend import StubBackend
from tests.processes import PROJECT, python

GUIDE = (PROJECT / "docs" / "guides" / "plugins.md").read_text("utf-8")
(RESULT_LINES_CODE,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
CODE = {
    name: (PROJECT / "docs" / "examples" / f"{name}.py").read_text()
    for name in ("signed_tokens", "csv_answers", "image_hash")
}
CODE["result_lines"] = RESULT_LINES_CODE

WITHOUT = """
import sys
from gateway.app import create_app
from gateway.settings import Settings
from tests.doubles.backend import PNG, StubBackend
from tests.services import client_of_app

before = {name for name in sys.modules if name.startswith("gateway_")}
with client_of_app(create_app(Settings(_env_file=None), StubBackend(), plugins=())) as client:
    answer = client.post("/predict", files={"files": ("a.png", PNG)})
    assert answer.status_code == 200, answer.text
    assert answer.json()["results"][0]["predictions"][0]["label"] == "cat"
    assert client.get("/models").status_code == client.get("/metrics").status_code == 200
    assert client.get("/stream").status_code == client.get("/v2").status_code == 404
    frames = client.post("/predict?frames=all", files={"files": ("a.png", PNG)})
    assert (frames.status_code, frames.json()["code"]) == (422, "invalid_parameter")
assert {name for name in sys.modules if name.startswith("gateway_")} == before
"""

WITHOUT_KEYS = """
from gateway import plugin_loading
from gateway.environment import load_settings

load_settings()
entries = plugin_loading.entry_points(group="triton_gateway")
others = [entry for entry in entries if not entry.value.endswith(":ApiKeys")]
assert len(others) == len(entries) - 1
plugin_loading.entry_points = lambda group: others
plugin_loading.installed.cache_clear()
plugin_loading.settings_class.cache_clear()
load_settings()
"""

RESULT_LINES = """
import json
from pathlib import Path
from gateway.app import create_app
from gateway.environment import load_settings
from tests.doubles.backend import PNG, StubBackend
from tests.services import client_of_app

settings = load_settings()
with client_of_app(create_app(settings, StubBackend())) as client:
    answer = client.post("/predict", files=[("files", ("a.png", PNG)), ("files", ("b.png", PNG))])
    assert answer.status_code == 200, answer.text
    assert set(client.get("/results/waiting").json()) == {"waiting"}
    assert "/results/waiting" in client.get("/openapi.json").json()["paths"]
    assert "result_lines_total 2.0" in client.get("/metrics").text
lines = [json.loads(line) for line in Path(settings.result_lines_file).read_text().splitlines()]
assert [(line["filename"], line["labels"]) for line in lines] == [("a.png", ["cat"]), ("b.png", ["cat"])]
assert {line["request_id"] for line in lines} == {answer.headers["x-request-id"]}
"""

CSV_ANSWERS = """
from gateway.app import create_app
from gateway.environment import load_settings
from tests.doubles.backend import PNG, StubBackend
from tests.services import client_of_app

with client_of_app(create_app(load_settings(), StubBackend())) as client:
    answer = client.post("/predict?format=csv", files=[("files", ("a,b.png", PNG)), ("files", ("c", b"?"))])
    assert answer.headers["content-type"].startswith("text/csv")
    header, first, second, end = answer.text.split("\\r\\n")
    assert (header, end) == ("filename,label,score,error", "")
    assert first.startswith('"a,b.png",cat,'), first
    assert second == "c,,,unsupported_format"
"""

IMAGE_HASH = """
import numpy as np
from gateway.app import create_app
from gateway.environment import load_settings
from tests.asking import encode
from tests.doubles.backend import StubBackend
from tests.services import client_of_app

pixels = np.zeros((80, 120, 3), np.uint8)
pixels[:, 60:] = 255
files = [encode(pixels, ".png"), b"no image", encode(pixels[:, ::-1], ".gif")]
with client_of_app(create_app(load_settings(), StubBackend())) as client:
    answer = client.post("/hash", files=[("files", (str(number), file)) for number, file in enumerate(files)])
    assert answer.json() == ["0f" * 8, "", "f0" * 8], answer.text
    assert client.post("/hash", content=b"{}", headers={"Content-Type": "text/plain"}).status_code == 415
    assert "gateway_images_in_flight 0.0" in client.get("/metrics").text
    assert "requestBody" in client.get("/openapi.json").json()["paths"]["/hash"]["post"]
"""

SIGNED_TOKENS = """
import hashlib, hmac
from gateway.app import create_app
from gateway.environment import load_settings
from tests.doubles.backend import PNG, StubBackend
from tests.services import client_of_app

def token(name, expires, secret="sixteen characters"):
    signed = f"{name}.{expires}"
    return f"{signed}.{hmac.new(secret.encode(), signed.encode(), hashlib.sha256).hexdigest()}"

with client_of_app(create_app(load_settings(), StubBackend())) as client:
    def status(token):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return client.post("/predict", files={"files": ("a.png", PNG)}, headers=headers).status_code

    later = 4_000_000_000
    assert status(token("camera", later)) == 200
    refused = ("", "x", token("camera", 1), token("camera", later, "another secret"))
    assert [status(each) for each in refused] == [401] * 4
    assert client.get("/health/live").status_code == 200
"""


def run(program: str, folder: Path | None = None, *, code: int = 0, **variables: str) -> str:
    """Run a program, which must exit with `code`; returns its stderr."""
    path = os.pathsep.join(map(str, filter(None, (folder, PROJECT))))
    environment = {**os.environ, "PYTHONPATH": path, "GATEWAY_PLUGINS_OFF": "", **variables}
    return python("-c", program, code=code, cwd=folder or PROJECT, env=environment).stderr


def install(folder: Path, module: str, name: str, code: str, group: str = "triton_gateway") -> None:
    """Install a module and its entry point into a folder, with the files that pip writes."""
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{module}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{module} = {module}:{name}\n")


def test_core_classifies_without_any_plug_in(tmp_path):
    run(WITHOUT, tmp_path)


@pytest.mark.parametrize(
    ("variables", "env_file"), [({"GATEWAY_API_KEYS_FILE": "keys"}, ""), ({}, "GATEWAY_API_KEYS_FILE=keys\n")]
)
def test_setting_of_a_plug_in_that_is_left_out_is_refused(monkeypatch, tmp_path, variables, env_file):
    """The settings of the core alone ignore its variable."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text(env_file)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for settings in (Settings(), load_settings()):
        with pytest.raises(PluginFailed, match="GATEWAY_API_KEYS_FILE is set, but the application"):
            create_app(settings, StubBackend(), plugins=())
    with pytest.raises(TypeError, match="'api_keys_file' is not a setting"):
        Settings(api_keys_file="keys")


@pytest.mark.parametrize(
    "code", ["import nothing_of_that_name", "from gateway.errors import UserError\nraise UserError('no driver')"]
)
def test_broken_plug_in_that_is_left_out_does_not_stop_the_start(monkeypatch, tmp_path, code):
    """An unknown variable, such as one of Kubernetes, may belong to any installed plug-in."""
    install(tmp_path, "broken", "Broken", code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GATEWAY_SERVICE_HOST", "10.0.0.1")
    create_app(Settings(), StubBackend(), plugins=())


def test_variable_of_keys_without_their_plug_in_stops_the_start():
    ended = warm.run(WITHOUT_KEYS, environment={**os.environ, "GATEWAY_API_KEYS_FILE": "keys"})
    assert ended.returncode == 1
    assert "GATEWAY_API_KEYS_FILE is not a setting" in ended.stderr


def test_plug_in_of_the_guide_sees_each_result(tmp_path):
    install(tmp_path, "result_lines", "ResultLines", CODE["result_lines"])
    run(RESULT_LINES, tmp_path, GATEWAY_RESULT_LINES_FILE=str(tmp_path / "results.jsonl"))


def test_example_answers_with_a_table(tmp_path):
    install(tmp_path, "csv_answers", "CsvAnswers", CODE["csv_answers"])
    run(CSV_ANSWERS, tmp_path)


def test_route_of_the_examples_takes_images(tmp_path):
    """A PNG that goes to Triton as it is, and a GIF that a decoder reads; nothing is in flight afterwards."""
    install(tmp_path, "image_hash", "Hashes", CODE["image_hash"])
    run(IMAGE_HASH, tmp_path)


def test_guide_has_every_hook():
    table = GUIDE.partition("| hook | for |\n")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == {name for name in vars(Plugin) if not name.startswith("_")} - {"name"}


def test_public_names_exist():
    rows = re.findall(r"^\| ((?:`gateway[a-z_.]+`(?:, )?)+) \| (.*) \|$", GUIDE, re.MULTILINE)
    public = {name for _, cell in rows for name in re.findall(r"`(\w+)`", cell)}
    modules = [import_module(name) for cell, _ in rows for name in re.findall(r"`([a-z_.]+)`", cell)]
    assert len(modules) > 10
    assert [name for name in public if not any(hasattr(module, name) for module in modules)] == []
    used = re.findall(r"^from (gateway\S*) import (.*)$", "\n".join(CODE.values()), re.MULTILINE)
    assert {name for module, names in used if module != "gateway.errors" for name in names.split(", ")} <= public
    named = re.findall(r"^ *from (gateway\S*) import (.*)$", inspect.getsource(hooks), re.MULTILINE)
    assert {
        name for module, names in named if module != "gateway.errors" for name in re.findall(r"[A-Z]\w+", names)
    } <= public


def test_example_checks_signed_tokens(tmp_path):
    install(tmp_path, "signed_tokens", "SignedTokens", CODE["signed_tokens"])
    run(SIGNED_TOKENS, tmp_path, GATEWAY_TOKEN_SECRET="sixteen characters")  # noqa: S106


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import nothing_of_that_name", "failed to load: ModuleNotFoundError"),
        ("Broken = 1", "does not name a subclass of gateway.hooks.Plugin"),
        (
            "from gateway.hooks import Plugin\nfrom gateway.settings import Section\n"
            "class Twice(Section):\n    port: int = 1\nclass Broken(Plugin):\n    settings = Twice",
            "the plug-in 'broken' has the setting port, as the gateway has",
        ),
    ],
)
def test_broken_plug_in_stops_the_start_with_its_name(tmp_path, code, reason):
    install(tmp_path, "broken", "Broken", code)
    program = "import sys; sys.argv = ['gateway', 'serve']; from gateway.command_line.main import main; main()"
    printed = run(program, tmp_path, code=1, COLUMNS="200")
    assert reason in printed
    assert "Traceback" not in printed


def test_command_that_cannot_be_loaded_costs_no_other_command(tmp_path):
    install(tmp_path, "broken", "broken", "import nothing_of_that_name", group=GROUP)
    program = "import sys; sys.argv = ['gateway', '--help']; from gateway.command_line.main import main; main()"
    assert "the command 'broken' cannot be loaded from broken:broken: ModuleNotFoundError" in run(program, tmp_path)


def test_command_of_a_plug_in(tmp_path):
    code = "import sys\ndef hello(name: str):\n    print('hello', name, file=sys.stderr)"
    install(tmp_path, "hello", "hello", code, group=GROUP)
    program = "import sys; sys.argv = ['gateway', 'hello', 'you']; from gateway.command_line.main import main; main()"
    assert run(program, tmp_path) == "hello you\n"


def test_setting_of_a_plug_in_is_checked_like_others(tmp_path):
    install(tmp_path, "result_lines", "ResultLines", CODE["result_lines"])
    program = "from gateway.environment import load_settings; load_settings()"
    assert "did you mean GATEWAY_RESULT_LINES_FILE?" in run(program, tmp_path, code=1, GATEWAY_RESULT_LINE_FILE="x")


def test_plug_ins_are_listed_also_those_that_are_off_or_broken(monkeypatch, tmp_path):
    install(tmp_path, "broken", "Broken", "import nothing_of_that_name")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("GATEWAY_PLUGINS_OFF", "page")
    found = {each.name: each for each in listings()}
    assert (found["page"].state, found["keys"].state) == ("off", "on")
    assert "failed to load: ModuleNotFoundError" in found["broken"].state
    assert "authenticators" in found["keys"].hooks
    assert "GATEWAY_API_KEYS_FILE" in found["keys"].settings
    assert (found["keys"].version, found["broken"].version) == (__version__, "1")


def test_plug_in_that_is_off_is_not_loaded(tmp_path):
    install(tmp_path, "broken", "Broken", "import nothing_of_that_name")
    program = "from gateway.environment import load_settings; load_settings()"
    run(program, tmp_path, GATEWAY_PLUGINS_OFF="broken")
    assert "names 'brokn'; installed are broken, " in run(program, tmp_path, code=1, GATEWAY_PLUGINS_OFF="brokn")
