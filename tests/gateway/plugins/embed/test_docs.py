"""docs/guides/embeddings.md: its requests and its Python get the results that it shows; nearest.py works."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from gateway.inference.result import Row
from gateway.plugins.embed.route import EmbeddingParameters
from tests.asking import encode
from tests.doubles.backend import VECTOR, StubBackend, by_image, with_vector
from tests.e2e.test_api_docs import matches, values
from tests.processes import PROJECT, environment, python
from tests.services import stub_service

TEXT = (PROJECT / "docs" / "guides" / "embeddings.md").read_text()
PYTHON = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
ENVIRONMENT = {**environment(), "PYTHONPATH": str(PROJECT)}
EXAMPLES = re.findall(r"^```console\n\$ (curl .+)\n((?:.+\n)+)```$", TEXT, re.MULTILINE)


def colours(image: bytes) -> Row:
    """The embedding of an image is its mean colour: blue, green and red."""
    pixels = cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR)
    return Row(embedding=pixels.mean((0, 1)).astype(np.float32))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with stub_service(StubBackend(with_vector)) as url:
        yield url


def test_documented_request_gets_its_documented_response(url: str):
    ((command, documented),) = EXAMPLES
    command = command.replace("http://127.0.0.1:8080", url)
    answer = subprocess.run(["bash", "-c", command], cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    assert matches(values(documented), values(answer)), answer


def test_every_parameter_is_documented():
    assert set(re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)) == set(EmbeddingParameters.model_fields)


def test_documented_client_code_runs(url: str):
    (code,) = (each for each in PYTHON if "Gateway" in each)
    code = code.replace("http://127.0.0.1:8080", url)
    assert run("-c", code).split() == ["docs/examples/cat.jpg", f"({len(VECTOR)},)"]


@pytest.mark.slow
def test_example_finds_similar_images_and_sends_only_new_ones(tmp_path: Path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for name, colour in {"red": (20, 20, 200), "blue": (200, 20, 20), "purple": (140, 20, 140)}.items():
        save(photos / f"{name}.png", colour)
    (photos / "broken.jpg").write_bytes(b"no picture")
    save(tmp_path / "pink.png", (60, 60, 220))
    script = PROJECT / "docs" / "examples" / "nearest.py"
    with stub_service(StubBackend(by_image(colours))) as url:
        options = ("--gateway", url, "--model", "colours")
        assert run(script, "index", photos, *options) == "3 images, 3 of them new\n"
        found = run(script, "find", photos, tmp_path / "pink.png", "--gateway", url, "--top", "2")
        save(photos / "pink.png", (60, 60, 220))
        assert run(script, "index", photos, "--gateway", url) == "4 images, 1 of them new\n"
        again = run(script, "find", photos, tmp_path / "pink.png", "--gateway", url, "--top", "1")
        find = (script, "find", photos, tmp_path / "pink.png", "--gateway", url)
        other = python(*find, "--model", "others", code=1, env=ENVIRONMENT)
    assert [Path(line.split()[1]).name for line in found.splitlines()] == ["red.png", "purple.png"]
    assert again == f"1.000  {photos / 'pink.png'}\n"
    assert "has embeddings of colours version 1, not of others version 1" in other.stderr


def run(*arguments: object) -> str:
    return python(*arguments, env=ENVIRONMENT).stdout


def save(path: Path, colour: tuple[int, int, int]) -> None:
    path.write_bytes(encode(np.full((8, 8, 3), colour, np.uint8), ".png"))
