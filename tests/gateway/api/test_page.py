"""The web page: its assets, its references, and the results of its scripts."""

import csv
import io
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gateway import errors
from gateway.plugins import errors_of, installed
from gateway_client.csv_cells import csv_line
from gateway_plugins.page.page import CONTENT_SECURITY_POLICY, SHIPPED_EXAMPLES, files
from tests.doubles.backend import PNG
from tests.services import Client, stub_service

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


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text of scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.all: list[tuple[str, dict[str, str | None]]] = []
        self.inline = ""
        self._within = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.all.append((tag, dict(attrs)))
        self._within = tag

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within in {"script", "style"}:
            self.inline += data


@pytest.fixture(scope="module")
def page() -> Elements:
    return Elements((STATIC / "index.html").read_text())


def text_of(name: str) -> str:
    return (STATIC / name).read_text()


def test_page_is_at_the_root(client: Client):
    response = client.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"] == TYPES[".html"]
    assert response.content == (STATIC / "index.html").read_bytes()
    assert client.request("HEAD", "/").headers["content-length"] == str(len(response.content))


@pytest.mark.parametrize("name", ASSETS)
def test_every_asset_has_its_media_type(client: Client, name: str):
    response = client.get(f"/assets/{name}")
    assert response.status_code == 200
    assert response.headers["content-type"] == TYPES[Path(name).suffix]
    assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/", "/assets/page.js"])
def test_unchanged_assets_are_revalidated_with_304(client: Client, path: str):
    first = client.get(path)
    assert first.headers["cache-control"] == "no-cache"
    second = client.get(path, headers={"If-None-Match": first.headers["etag"]})
    assert (second.status_code, second.content) == (304, b"")


COLOUR = re.compile(
    r"#[0-9a-fA-F]{3,8}\b|\b(?:rgb|rgba|hsl|hsla|oklch|oklab|lab|lch|hwb|color)\(|:\s*(?:white|black)\b"
)
SIZE = re.compile(r"font(?:-size)?:[^;]*?\b[\d.]+(?:px|rem|pt)\b")


@pytest.mark.parametrize("name", [name for name in ASSETS if name.endswith(".css") and name != "tokens.css"])
def test_colours_and_sizes_of_text_are_tokens(name: str):
    style = re.sub(r"/\*.*?\*/", "", text_of(name), flags=re.DOTALL)
    assert COLOUR.findall(style) == []
    assert SIZE.findall(style) == []
    assert set(re.findall(r"var\((--[\w-]+)\)", style)) <= set(re.findall(r"(--[\w-]+):", text_of("tokens.css")))


def test_content_security_policy_allows_nothing_inline_or_external(client: Client):
    policy = client.get("/").headers["content-security-policy"]
    assert policy == CONTENT_SECURITY_POLICY
    assert "default-src 'self'" in policy
    assert "img-src 'self' blob: data:" in policy
    assert "unsafe" not in policy
    assert "//" not in policy


def test_page_has_no_inline_script_or_style(page: Elements):
    assert page.inline.strip() == ""
    for tag, attributes in page.all:
        assert tag != "style"
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
    assert all(".innerHTML" not in text_of(name) for name in SCRIPTS)


@pytest.mark.parametrize("name", [name for name in ASSETS if not name.endswith(".jpg")])
def test_no_asset_names_another_host(name: str):
    text = text_of(name).replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert re.findall(r"(?:https?:|[\"'(=\s])//[\w.]+[^\s]*", re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)) == []
    assert "@import" not in text


def test_every_fetched_path_is_an_endpoint(client: Client):
    asked = {path for script in SCRIPTS for path in re.findall(r"(?:fetch|post)\([\"`]([\w/.]+)", text_of(script))}
    posted = {"explain", "feedback", "predict"}
    assert asked == {*posted, "health/live", "health/ready", "limits", "models", "stream", "models/", "label/image"}
    endpoints = {path.lstrip("/") for path in client.get("/openapi.json").json()["paths"]}
    assert asked - {"models/", "label/image"} <= endpoints


def test_every_shipped_example_is_an_asset():
    assert set(SHIPPED_EXAMPLES) == {name for name in ASSETS if name.endswith(".jpg")}


def test_page_knows_the_errors_that_are_worth_a_retry():
    image_codes = {error.code for error in errors_of(installed()) if issubclass(error, errors.ImageError)}
    file_faults = set(re.findall(r'^  "(\w+)",$', text_of("entry.js"), flags=re.MULTILINE))
    assert file_faults == image_codes | {"unreadable_file"}
    passing = re.search(r"PASSING = new Set\(\[(.*)\]\)", text_of("run.js"))
    assert passing is not None
    codes = set(re.findall(r'"(\w+)"', passing[1]))
    assert codes == {errors.ModelUnavailable.code, errors.Overloaded.code, errors.TritonUnreachable.code}


def test_example_image_equals_that_of_the_examples():
    example = Path(__file__).parents[3] / "examples" / "cat.jpg"
    assert (STATIC / "cat.jpg").read_bytes() == example.read_bytes()


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
def node() -> str:
    return shutil.which("node") or pytest.skip("node is not installed")


@pytest.fixture(scope="module")
def evaluate(node: str) -> Iterator[Callable[..., Any]]:
    """The value of a JavaScript expression that uses names of one of the page's modules."""
    command = [node, "--input-type=module", "--eval", EVALUATE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def value(expression: str, module: str = "words.js") -> Any:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(f"{text_of(module)}\nexport default {expression};") + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield value


def test_csv_can_be_read_back(evaluate):
    rows = [["filename", "label"], ['a "b", c.png', "crane,\nbird"], ["d.png", ""]]
    text = evaluate(f"csv({json.dumps(rows)})")
    assert list(csv.reader(io.StringIO(text, newline=""))) == rows


def test_csv_contains_no_formulas(evaluate):
    """The same lines as the command writes."""
    row = ["=1", "+1", "-1", "@a", "\t=1", "\r", ' "=1', "'=1", "\uff1d1", "a;=1", "cat", -1, 0.5, ""]
    assert evaluate(f"csv({json.dumps([row])})") == csv_line(row)


def test_python_and_javascript_snippets_run(evaluate, tmp_path, monkeypatch, capsys):
    """The code that needs no client of ours classifies a file, as a colleague with the URL alone would run it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b.png").write_bytes(PNG)
    with stub_service() as url:
        address = json.dumps(f"{url}/predict?top_k=1")
        exec(evaluate(f"python({address}, ['a b.png'], 'KEY')"), {})  # noqa: S102  # the page's own code
        script = evaluate(f"javascript({address}, '')")
        file = f"new File([Buffer.from({json.dumps(PNG.hex())}, 'hex')], 'a b.png', {{ type: 'image/png' }})"
        answer = evaluate(
            f"await (async () => {{ globalThis.document = {{ querySelector: () => ({{ files: [{file}] }}) }};"
            f"let shown; const console = {{ log: (text) => (shown = text) }};\n{script}\nreturn shown; }})()"
        )
    assert "a b.png" in capsys.readouterr().out
    assert [each["label"] for each in answer["results"][0]["predictions"]] == ["cat"]


def test_python_client_snippet_compiles(evaluate):
    names, query = '["a b.jpg", "q\\"x.png"]', '"top_k=5&model=12&version=2"'
    code = evaluate(
        f'pythonClient("http://h:8080", "http://h:8080/client/c.whl", new URLSearchParams({query}), {names}, "KEY")'
    )
    compile(code, "page", "exec")
    assert 'Gateway("http://h:8080", api_key="KEY")' in code
    assert 'top_k=5, model="12", version=2' in code


@pytest.mark.parametrize("key", ["", "KEY"])
def test_camera_snippets_are_the_command_and_python(evaluate, key):
    code = evaluate(f'streamPython("ws://h:8080/stream?top_k=5", "{key}")')
    compile(code, "page", "exec")
    assert ('additional_headers={"X-API-Key": "KEY"}' in code) == bool(key)
    query = 'new URLSearchParams("model=a b&smoothing=none&top_k=5")'
    line = evaluate(f'streamShell("http://h:8080", {query}, "{key}")')
    expected = 'gateway stream 0 --url http://h:8080 --model "a b" --smoothing none'
    assert line == (f"{expected} --api-key KEY" if key else expected)
    one = evaluate(f'streamShell("http://h:8080", new URLSearchParams("model=m&version=2"), "{key}")')
    assert one.endswith("# asks the version in use: the command takes no other")


@pytest.mark.parametrize(
    ("size", "resize", "crop", "part"),
    [
        ((400, 200), [224, 224], [224], (0, 0, 1, 1)),
        ((400, 200), [256], [256], (0.25, 0, 0.5, 1)),
        ((400, 400), [256], [224, 224], (1 / 16, 1 / 16, 7 / 8, 7 / 8)),
        ((300, 600), [64], [32, 64], (0, 0.375, 1, 0.25)),
        ((4, 4), [], [], None),
    ],
)
def test_model_view_is_the_crop_of_the_resized_image(evaluate, size, resize, crop, part):
    facts = json.dumps({"resize_size": resize, "crop_size": crop})
    found = evaluate(f"seen({{ width: {size[0]}, height: {size[1]} }}, {facts})", "filters.js")
    assert (found and tuple(found[name] for name in ("left", "top", "width", "height"))) == pytest.approx(part)
