"""The web page: its assets, its references, and the results of its scripts."""

import asyncio
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

import httpx
import pytest

from gateway import errors
from gateway.app import create_app
from gateway_client.csv_cells import csv_line
from gateway_plugins.page.page import CONTENT_SECURITY_POLICY, SHIPPED_EXAMPLES, files
from tests.doubles.backend import PNG
from tests.services import stub_service
from tests.settings import Settings

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


class Client:
    """Asks the application itself, without its lifespan: the page asks for no model, and so for no Triton."""

    def __init__(self) -> None:
        self._transport = httpx.ASGITransport(create_app(Settings(_env_file=None)))

    def get(self, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
        return asyncio.run(self._request("GET", path, headers))

    def head(self, path: str) -> httpx.Response:
        return asyncio.run(self._request("HEAD", path, None))

    async def _request(self, method: str, path: str, headers: dict[str, str] | None) -> httpx.Response:
        async with httpx.AsyncClient(transport=self._transport, base_url="http://gateway") as client:
            return await client.request(method, path, headers=headers)


@pytest.fixture(scope="module")
def client() -> Client:
    return Client()


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
    assert client.head("/").headers["content-length"] == str(len(response.content))


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
    assert set(re.findall(r"var\((--[\w-]+)\)", style)) <= set(tokens("light"))


def tokens(scheme: str) -> dict[str, str]:
    """The custom properties of a scheme; dark redefines some of the light ones."""
    light, dark = text_of("tokens.css").split("@media (prefers-color-scheme: dark)")
    found = dict(re.findall(r"(--[\w-]+): ([^;]+);", light))
    return found | (dict(re.findall(r"(--[\w-]+): ([^;]+);", dark)) if scheme == "dark" else {})


def luminance(colour: str) -> float:
    """WCAG 2's relative luminance of #rgb or #rrggbb."""
    digits = colour.removeprefix("#")
    pairs = [digit * 2 for digit in digits] if len(digits) == 3 else re.findall("..", digits)
    channels = [int(pair, 16) / 255 for pair in pairs]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_the_contrast_of_wcag_aa_on_every_ground(scheme: str):
    colours = tokens(scheme)
    grounds = ("ground", "surface", "sunken", "accent-wash")
    pairs = [(text, ground) for text in ("ink", "soft", "accent") for ground in grounds]
    pairs += [(text, ground) for text in ("good", "wait", "wrong") for ground in ("ground", "surface")]
    pairs += [
        ("wait", "wait-wash"),
        ("wrong", "wrong-wash"),
        ("ink", "wait-wash"),
        ("ink", "wrong-wash"),
        ("ink", "chosen"),
    ]
    pairs += [("on-accent", "accent"), ("on-accent", "accent-deep"), ("ground", "ink")]
    ratios = {pair: round(contrast(*(colours[f"--{name}"] for name in pair)), 2) for pair in pairs}
    assert {pair: ratio for pair, ratio in ratios.items() if ratio < 4.5} == {}
    assert contrast(colours["--edge"], colours["--surface"]) >= 3


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


def test_every_reference_of_the_page_exists(client: Client, page: Elements):
    referred = {
        value
        for _, attributes in page.all
        for name, value in attributes.items()
        if name in {"href", "src"} and value and not value.startswith("#")
    }
    assert referred >= {"assets/base.css", "assets/page.js", "docs", "metrics"}
    for path in referred:
        assert client.get(f"/{path}").status_code == 200, path


def test_every_imported_module_exists():
    imported = {name for script in SCRIPTS for name in re.findall(r'(?:from |import\()"\./([\w.]+)"', text_of(script))}
    assert imported == set(SCRIPTS) - {"page.js", "docs.js", "label.js"}


def test_every_fetched_path_is_an_endpoint(client: Client):
    asked = {path for script in SCRIPTS for path in re.findall(r"(?:fetch|post)\([\"`]([\w/.]+)", text_of(script))}
    posted = {"explain", "feedback", "predict"}
    assert asked == {*posted, "health/live", "health/ready", "limits", "models", "stream", "models/", "label/image"}
    endpoints = {path.lstrip("/") for path in client.get("/openapi.json").json()["paths"]}
    assert asked - {"models/", "label/image"} <= endpoints


def test_every_shipped_example_is_an_asset():
    assert set(SHIPPED_EXAMPLES) == {name for name in ASSETS if name.endswith(".jpg")}


def test_every_referenced_element_is_on_the_page(page: Elements):
    ids = [attributes["id"] for _, attributes in page.all if "id" in attributes]
    assert len(ids) == len(set(ids))
    scripts = [name for name in SCRIPTS if name != "label.js"]
    named = {name for script in scripts for name in re.findall(r'\$\("([\w-]+)"\)', text_of(script))}
    for _, attributes in page.all:
        for reference in ("for", "aria-labelledby", "aria-describedby"):
            named.update((attributes.get(reference) or "").split())
    assert named <= set(ids)


def test_every_element_that_the_labelling_page_refers_to_is_there(client: Client):
    elements = Elements(client.get("/label").text).all
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'\$\("([\w-]+)"\)', text_of("label.js") + text_of("key.js"))) <= set(ids)
    referred = [value for _, each in elements for name, value in each.items() if name in {"href", "src"} and value]
    for path in referred:
        assert path.startswith("#") or client.get(f"/{path.removeprefix('.')}").status_code == 200, path


def test_fields_and_images_have_labels(page: Elements):
    labelled = {attributes["for"] for tag, attributes in page.all if tag == "label"}
    for tag, attributes in page.all:
        if tag in {"input", "select"}:
            assert attributes["id"] in labelled
        if tag == "img":
            assert "alt" in attributes
    assert ("html", {"lang": "en"}) in page.all
    assert {"status", "alert"} <= {attributes.get("role") for _, attributes in page.all}


def test_page_knows_the_errors_that_are_worth_a_retry():
    image_codes = {error.code for error in errors.ImageError.__subclasses__()}
    file_faults = set(re.findall(r'^  "(\w+)",$', text_of("entry.js"), flags=re.MULTILINE))
    assert file_faults == image_codes | {"unreadable_file"}
    passing = re.search(r"PASSING = new Set\(\[(.*)\]\)", text_of("run.js"))
    assert passing is not None
    codes = set(re.findall(r'"(\w+)"', passing[1]))
    assert codes == {errors.ModelUnavailable.code, errors.Overloaded.code, errors.TritonUnreachable.code}


def test_example_image_equals_that_of_the_examples():
    example = Path(__file__).parents[3] / "examples" / "cat.jpg"
    assert (STATIC / "cat.jpg").read_bytes() == example.read_bytes()


def test_key_field_is_shown_only_if_needed_and_no_key_is_stored(page: Elements):
    fields = {attributes["id"]: attributes for _, attributes in page.all if "id" in attributes}
    assert "hidden" in fields["key-field"]
    assert fields["key"]["type"] == "password"
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


FILTERED = """(({ counts, labels, groups }) =>
  [counts, labels, groups.map(({ title, files }) => [title, files.map(({ name }) => name)])])"""
FILES = """[["a", "cat", .9], ["b", "dog", .8], ["c", "cat", .3], ["d"]].map(([name, label, score]) => {
  const best = label ? { label, score } : null;
  const state = label ? "ok" : "error";
  return { name, state, first: { state, best }, answers: [{ state, best }] };
})"""


@pytest.mark.parametrize(
    ("choice", "counts", "labels", "groups"),
    [
        ({}, [4, 3, 1, 0], [["cat", 2], ["dog", 1]], [["", list("abcd")]]),
        ({"least": 0.5}, [4, 3, 1, 1], [["cat", 1], ["dog", 1]], [["", list("abcd")]]),
        ({"least": 0.5, "kind": "unsure"}, [4, 3, 1, 1], [], [["", ["c"]]]),
        ({"label": "cat"}, [4, 3, 1, 0], [["cat", 2], ["dog", 1]], [["", ["a", "c"]]]),
        (
            {"grouped": True},
            [4, 3, 1, 0],
            [["cat", 2], ["dog", 1]],
            [["cat", ["a", "c"]], ["dog", ["b"]], ["Without a label", ["d"]]],
        ),
    ],
)
def test_results_are_filtered_and_grouped(evaluate, choice, counts, labels, groups):
    found = evaluate(f"{FILTERED}(filterEntries({FILES}, {json.dumps(choice)}))", "filters.js")
    kinds = dict(zip(["all", "ok", "error", "unsure"], counts, strict=True))
    assert found == [{**kinds, "differ": 0}, labels, groups]


@pytest.mark.parametrize(
    ("size", "resize", "crop", "part"),
    [
        ((400, 200), [224, 224], [224], (0, 0, 1, 1)),
        ((400, 200), [256], [256], (0.25, 0, 0.5, 1)),
        ((400, 400), [256], [224, 224], (1 / 16, 1 / 16, 7 / 8, 7 / 8)),
        ((300, 600), [64], [32, 64], (0, 0.375, 1, 0.25)),
    ],
)
def test_model_view_is_the_crop_of_the_resized_image(evaluate, size, resize, crop, part):
    facts = json.dumps({"resize_size": resize, "crop_size": crop})
    found = evaluate(f"seen({{ width: {size[0]}, height: {size[1]} }}, {facts})", "filters.js")
    assert isinstance(found, dict)
    assert tuple(found[name] for name in ("left", "top", "width", "height")) == pytest.approx(part)


def test_model_view_is_unknown_without_a_crop_size(evaluate):
    assert evaluate("seen({ width: 4, height: 4 }, { resize_size: [], crop_size: [] })", "filters.js") is None


MODELS = {
    "default": "m",
    "models": [
        {"name": "m", "versions": ["1", "2"], "ready": True, "reason": None, "classes": 2},
        {"name": "n", "versions": ["1"], "ready": False, "reason": "It died.", "classes": 3},
        {"name": "o", "versions": [], "ready": False, "loaded": False, "reason": "No Triton has it.", "classes": 0},
    ],
}
LISTED = ["m", "m, version 2", "m, version 1", "n (not ready)", "o (loads when used)"]
SELECTIONS = {
    "": ("m", [None, None], ""),
    "?model=m&version=2": ("m, version 2", ["m", "2"], ""),
    "?model=n": ("n (not ready)", ["n", None], ""),
    "?model=o": ("o (loads when used)", ["o", None], ""),
    "?model=zzz": ("m", [None, None], "This gateway has no model zzz. Choose another one."),
}
WITHOUT_A_LIST = (
    ({"status": 503, "body": {"detail": "Triton is away."}}, "The models cannot be listed: Triton is away."),
    ({"status": 502, "body": {}}, "The models cannot be listed: the gateway answered 502."),
    (None, "The models cannot be listed: the gateway does not answer."),
    ({"status": 200, "body": {"default": "m", "models": []}}, "This gateway serves no model that takes images."),
)


@pytest.fixture(scope="module")
def menus(node: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The menu of models for each query of the page's address and response of the gateway, as JSON."""
    folder = tmp_path_factory.mktemp("page")
    # Without a package.json, node takes .js for CommonJS.
    (folder / "package.json").write_text('{"type": "module"}')
    for name in SCRIPTS:
        (folder / name).write_text(text_of(name))
    cases = [(search, {"status": 200, "body": MODELS}) for search in SELECTIONS]
    cases += [(search, answer) for answer, _ in WITHOUT_A_LIST for search in ("", "?model=flowers")]
    command = [node, str(Path(__file__).with_name("picker.mjs")), str(folder), json.dumps(cases)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return dict(zip(map(json.dumps, cases), json.loads(run.stdout), strict=True))


@pytest.mark.parametrize("search", SELECTIONS)
def test_model_menu_selects_the_model_of_the_url(menus, search):
    chosen, asks, problem = SELECTIONS[search]
    menu = menus[json.dumps((search, {"status": 200, "body": MODELS}))]
    assert menu == {"offered": LISTED, "chosen": chosen, "asks": asks, "problem": problem}


@pytest.mark.parametrize(("answer", "why"), WITHOUT_A_LIST)
def test_model_menu_explains_a_missing_list(menus, answer, why):
    menu = menus[json.dumps(("", answer))]
    assert (menu["offered"], menu["asks"]) == (["The default model"], [None, None])
    assert menu["problem"].startswith(why)
    assert menus[json.dumps(("?model=flowers", answer))]["asks"] == ["flowers", None]
