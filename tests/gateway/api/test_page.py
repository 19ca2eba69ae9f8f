"""The web page: its files, the results of its scripts, the pictures to try, and the wheel of the client."""

import csv
import io
import json
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import gateway_client
from gateway import __version__, errors
from gateway.errors import NotFound
from gateway.plugin_loading import errors_of, installed
from gateway.plugins.page import client_build
from gateway.plugins.page import client_wheel as wheels
from gateway.plugins.page.client_build import build_client
from gateway.plugins.page.client_wheel import client_wheel
from gateway.plugins.page.model_examples import MAX_EXAMPLE_BYTES, MAX_EXAMPLES
from gateway.plugins.page.page import CONTENT_SECURITY_POLICY, files
from gateway_client.csv_cells import csv_line
from tests.doubles.backend import MODEL, PNG, StubBackend
from tests.processes import PROJECT
from tests.services import Client, client_of, stub_service

STATIC = Path(str(files.directory))
ASSETS = sorted(path.name for path in STATIC.iterdir())
SCRIPTS = [name for name in ASSETS if name.endswith(".js")]
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".jpg": "image/jpeg",
}


def text_of(name: str) -> str:
    return (STATIC / name).read_text()


@pytest.mark.parametrize(("path", "name"), [("/", "index.html"), *((f"/assets/{name}", name) for name in ASSETS)])
def test_every_file_has_its_media_type_and_is_revalidated(client: Client, path: str, name: str):
    """The page itself is served at the root."""
    first = client.get(path)
    assert (first.status_code, first.headers["content-type"]) == (200, TYPES[Path(name).suffix])
    assert first.content == (STATIC / name).read_bytes()
    assert first.headers["x-content-type-options"] == "nosniff"
    assert first.headers["cache-control"] == "no-cache"
    second = client.get(path, headers={"If-None-Match": first.headers["etag"]})
    assert (second.status_code, second.content) == (304, b"")


def test_content_security_policy_allows_nothing_inline_or_external(client: Client):
    policy = client.get("/").headers["content-security-policy"]
    assert policy == CONTENT_SECURITY_POLICY
    assert "default-src 'self'" in policy
    assert "img-src 'self' blob: data:" in policy
    assert [words for words in ("unsafe", "//") if words in policy] == []


def test_page_knows_the_errors_that_are_worth_a_retry():
    image_codes = {error.code for error in errors_of(installed()) if issubclass(error, errors.ImageError)}
    file_faults = set(re.findall(r'^  "(\w+)",$', text_of("entry.js"), flags=re.MULTILINE))
    assert file_faults == image_codes | {"unreadable_file"}
    passing = re.search(r"PASSING = new Set\(\[(.*)\]\)", text_of("run.js"))
    assert passing is not None
    codes = set(re.findall(r'"(\w+)"', passing[1]))
    assert codes == {errors.ModelUnavailable.code, errors.Overloaded.code, errors.TritonUnreachable.code}


def test_no_key_is_stored():
    assert not [name for name in SCRIPTS if re.search(r"localStorage|sessionStorage|\.cookie", text_of(name))]


EVALUATE = """
import { createInterface } from "node:readline";
for await (const line of createInterface({ input: process.stdin })) {
  const code = encodeURIComponent(JSON.parse(line));
  console.log(JSON.stringify((await import(`data:text/javascript,${code}`)).default));
}
"""


@pytest.fixture(scope="module")
def evaluate() -> Iterator[Callable[..., Any]]:
    """The value of a JavaScript expression that uses names of one of the page's modules."""
    node = shutil.which("node") or pytest.skip("node is not installed")
    command = [node, "--input-type=module", "--eval", EVALUATE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def value(expression: str, module: str = "words.js") -> Any:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(f"{text_of(module)}\nexport default {expression};") + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield value


def test_csv_can_be_read_back_and_contains_no_formulas(evaluate):
    """The same lines as the command writes."""
    rows = [["filename", "label"], ['a "b", c.png', "crane,\nbird"], ["d.png", ""]]
    text = evaluate(f"csv({json.dumps(rows)})")
    assert list(csv.reader(io.StringIO(text, newline=""))) == rows
    row = ["=1", "+1", "-1", "@a", "\t=1", "\r", ' "=1', "'=1", "\uff1d1", "a;=1", "cat", -1, 0.5, ""]
    assert evaluate(f"csv({json.dumps([row])})") == csv_line(row)


def test_python_client_snippet_compiles(evaluate):
    names, query = '["a b.jpg", "q\\"x.png"]', '"top_k=5&model=12&version=2"'
    code = evaluate(
        f'pythonClient("http://h:8080", "http://h:8080/client/c.whl", new URLSearchParams({query}), {names}, "KEY")'
    )
    compile(code, "page", "exec")
    assert 'Gateway("http://h:8080", api_key="KEY")' in code
    assert 'top_k=5, model="12", version=2' in code


IMAGENET = ("tabby", "espresso", "missile", *(f"class {number}" for number in range(997)))


def imagenet(labels: Sequence[str] = IMAGENET) -> StubBackend:
    return StubBackend(labels=labels)


def examples(folder: Path, *entries: object) -> None:
    """The index of the stub's model, and a picture for each of its entries."""
    below = folder / MODEL.name
    below.mkdir(exist_ok=True)
    (below / "examples.json").write_text(json.dumps(entries))
    for number in range(1, len(entries) + 1):
        (below / f"example-{number}.png").write_bytes(PNG)


def listed(folder: Path | None, backend: StubBackend | None = None) -> list[dict[str, str | None]]:
    with client_of(backend or StubBackend(), model_repository=folder) as client:
        return client.get(f"/models/{MODEL.name}/examples").json()["examples"]


def test_pictures_beside_a_model_are_served(tmp_path):
    examples(tmp_path, {"file": "example-1.png", "label": "cat"}, {"file": "example-2.png"})
    with client_of(StubBackend(), model_repository=tmp_path) as client:
        first, second = client.get(f"/models/{MODEL.name}/examples").json()["examples"]
        assert (first["label"], second["label"]) == ("cat", None)
        response = client.get(f"/{first['url']}")
        assert (response.content, response.headers["content-type"]) == (PNG, "image/png")
        assert client.get(f"/models/{MODEL.name}/examples/2").status_code == 404
        assert client.get("/models/nothing/examples").json()["code"] == "model_not_found"
        assert client.get("/models/../examples").status_code == 404


def test_only_models_with_the_classes_of_imagenet_get_the_shipped_pictures(tmp_path):
    assert listed(None) == []
    assert [each["url"] for each in listed(None, imagenet())] == [
        "assets/cat.jpg",
        "assets/coffee.jpg",
        "assets/rocket.jpg",
    ]
    assert listed(None, imagenet(IMAGENET[:-1])) == []
    examples(tmp_path, {"file": "example-1.png", "label": "tabby"})
    assert [each["label"] for each in listed(tmp_path, imagenet())] == ["tabby"]


@pytest.mark.parametrize("file", ["../origin.json", "example-1.svg", "/etc/passwd", "config.pbtxt", "example-1.png/"])
def test_index_names_no_other_file(tmp_path, file):
    examples(tmp_path, {"file": file, "label": None}, {"file": "example-2.png", "label": None})
    assert len(listed(tmp_path)) == 1


@pytest.mark.parametrize("text", ["", "{", '{"file": 1}', '[{"file": 1}]', "[" * 100_000])
def test_unreadable_index_is_none(tmp_path, text):
    examples(tmp_path)
    (tmp_path / MODEL.name / "examples.json").write_text(text)
    assert listed(tmp_path) == []


def test_examples_are_limited_in_number_and_size(tmp_path):
    examples(tmp_path, *({"file": f"example-{number}.png"} for number in range(1, MAX_EXAMPLES + 2)))
    assert len(listed(tmp_path)) == MAX_EXAMPLES
    first, second = (tmp_path / MODEL.name / f"example-{number}.png" for number in (1, 2))
    first.write_bytes(bytes(MAX_EXAMPLE_BYTES))
    second.write_bytes(bytes(MAX_EXAMPLE_BYTES + 1))
    with client_of(StubBackend(), model_repository=tmp_path) as client:
        assert client.get(f"/models/{MODEL.name}/examples/0").status_code == 200
        assert client.get(f"/models/{MODEL.name}/examples/1").status_code == 404


WHEEL = f"triton_image_gateway_client-{__version__}-py3-none-any.whl"


def test_wheel_has_every_module_and_version_and_equal_files_make_equal_wheels(tmp_path):
    """Each process of a checkout builds its own; pip compares their hashes with the one that the page names."""
    modules = {path.relative_to(PROJECT).as_posix() for path in (PROJECT / "gateway_client").rglob("*.py")}
    with zipfile.ZipFile(io.BytesIO(client_wheel().data)) as archive:
        names = set(archive.namelist())
    assert client_wheel().name == WHEEL
    assert gateway_client.__version__ == __version__
    assert modules | {"gateway_client/py.typed"} == {name for name in names if ".dist-info/" not in name}
    assert build_client(PROJECT / "gateway_client", tmp_path).read_bytes() == client_wheel().data


def test_wheel_that_the_distribution_brings_is_served(tmp_path, monkeypatch):
    (tmp_path / WHEEL).write_bytes(b"built with the distribution")
    monkeypatch.setattr(wheels, "BROUGHT", tmp_path)
    assert wheels.client_wheel.__wrapped__().data == b"built with the distribution"


def test_checkout_without_setuptools_names_the_folder_to_install(monkeypatch):
    monkeypatch.setattr(client_build, "BUILD", "import no_setuptools")
    with pytest.raises(NotFound, match=r"no setuptools .* install \./gateway_client"):
        wheels.client_wheel.__wrapped__()


def test_wheel_is_revalidated_and_other_names_are_not_found(client):
    first = client.get(f"/client/{WHEEL}")
    assert first.content == client_wheel().data
    again = client.get(f"/client/{WHEEL}", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    missing = client.get("/client/triton_image_gateway_client-0.0.1-py3-none-any.whl")
    assert missing.status_code == 404
    assert WHEEL in missing.json()["detail"]
    assert f'href="{WHEEL}#sha256={client_wheel().sha256}"' in client.get("/client/").text


@pytest.mark.slow
def test_pip_installs_the_client_from_the_service(tmp_path):
    """In a new environment, which has httpx from this one."""
    venv.create(tmp_path / "venv", symlinks=True, with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    with stub_service() as url:
        wheel = f"{url}/client/{WHEEL}"
        pip = [sys.executable, "-m", "pip", "--isolated", "--python", str(python), "install", "--no-deps", wheel]
        installing = subprocess.run(pip, capture_output=True, text=True, check=False)
        assert installing.returncode == 0, installing.stderr
        (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
        borrowed = [path for path in sys.path if path.endswith("site-packages")]
        (packages / "borrowed.pth").write_text("".join(f"{path}\n" for path in borrowed))
        (example,) = re.findall(
            r"```python\n(.*?)```", (PROJECT / "gateway_client" / "README.md").read_text(), re.DOTALL
        )
        code = f"import gateway_client; print(gateway_client.__file__)\n{example.replace('http://127.0.0.1:8080', url)}"
        run = subprocess.run([python, "-P", "-c", code], capture_output=True, text=True, cwd=PROJECT, check=False)
    place, *answers = run.stdout.splitlines()
    assert Path(place).is_relative_to(tmp_path), run.stderr
    assert sorted(answers) == ["README.md: unsupported_format", "docs/examples/cat.jpg: cat 0.90"]
