"""The repository of docs/guides/existing-triton.md, served by a real Triton as the page has it, but on the CPU."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from gateway.findings import Level
from gateway_local.doctor.tritons import tritons
from gateway_local.runtime.base import TritonRuntime
from gateway_local.server import EmbeddedTriton
from tests.photos import photo, undecodable
from tests.processes import PROJECT, Gateway, running_gateway
from tests.samples import sample
from tests.settings import Settings
from tests.tritons import running_triton

PAGE = PROJECT / "docs" / "guides" / "existing-triton.md"
GPUS = re.compile(r"instance_group \[\n.*?\n\]", re.DOTALL)
CPU = "instance_group [ { count: 1 kind: KIND_CPU } ]"
JPEG = {"content-type": "image/jpeg"}


def files() -> dict[str, str]:
    """The files that the page shows, by their paths."""
    return dict(re.findall(r"`(models/[\w./]+)`:\n\n```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL))


def client_code() -> dict[str, object]:
    """The names that the page's Python client defines."""
    (code,) = re.findall(r"```python\n(import numpy.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)  # noqa: S102  # the page's own example
    return names


def write_repository(folder: Path) -> Path:
    """Write the page's repository with a small network; the GPU lines become KIND_CPU."""
    # Torch takes seconds to import, and this module is collected by every worker.
    from tests.gateway_models.networks.builders import Head, save_torchscript

    for name, text in files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(GPUS.sub(CPU, text).replace("count: 2 kind: KIND_CPU", "count: 1 kind: KIND_CPU"))
    (folder / "models" / "ensemble_model" / "1").mkdir()
    (folder / "models" / "classifier" / "1").mkdir()
    save_torchscript(Head(), folder / "models" / "classifier" / "1" / "model.pt", side=224)
    return folder / "models"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_repository(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def own_triton(runtime: TritonRuntime, repository: Path) -> Iterator[EmbeddedTriton]:
    with running_triton(runtime, repository) as server:
        yield server


@pytest.fixture(scope="module")
def gateway(own_triton: EmbeddedTriton, start_gateway) -> Iterator[Gateway]:
    with start_gateway(triton_url=own_triton.url) as running:
        yield running


@pytest.fixture
def client(gateway: Gateway) -> Iterator[httpx.Client]:
    with gateway.client() as http:
        yield http


def test_scores_are_those_of_the_guides_own_client(own_triton, client, photos):
    paths = sorted(photos.iterdir())
    direct = client_code()["classify"](own_triton.url, paths)
    answer = client.post("/predict", params={"top_k": 5}, files=[("files", path.read_bytes()) for path in paths])
    results = answer.json()["results"]
    assert len(results) == len(direct)
    for scores, result in zip(direct, results, strict=True):
        best = sorted(range(5), key=lambda index: -scores[index])
        predictions = result["predictions"]
        assert [each["class_id"] for each in predictions] == best
        assert [each["label"] for each in predictions] == list(map(str, best))
        assert [each["score"] for each in predictions] == pytest.approx(scores[best].tolist(), abs=1e-4)


def test_bad_files_leave_the_others_their_answers(gateway, client):
    """A bad file that is sent alone gets its own error, too."""
    cat = photo("cat")
    rows = [
        ("cat.jpg", cat, None),
        ("notes.txt", b"hello", "unsupported_format"),
        ("cut.jpg", cat[: len(cat) // 2], "truncated_image"),
        ("bad.png", undecodable(), "undecodable_image"),
        ("alpha.png", sample("PNG RGBA 8 bit").data, None),
        ("coffee.bmp", photo("coffee", "BMP"), None),
        ("coffee.webp", photo("coffee", "WEBP"), None),
        ("bad too.png", undecodable(1), "undecodable_image"),
        ("last.jpg", cat, None),
    ]
    answer = client.post("/predict", files=[("files", (name, data)) for name, data, _ in rows])
    results = answer.json()["results"]
    assert [result["error"] and result["error"]["code"] for result in results] == [code for *_, code in rows]
    assert results[0]["predictions"] == results[-1]["predictions"]
    answer = client.post("/predict", content=undecodable(2), headers=JPEG)
    assert (answer.status_code, answer.json()["results"][0]["error"]["code"]) == (422, "undecodable_image")
    assert client.get("/health/ready").status_code == 200
    assert not gateway.faults()


def test_limitations_are_shown_with_their_costs(own_triton, client):
    model = client.get("/models/ensemble_model").json()
    assert (model["classes"], model["labels"]) == (5, list("01234"))
    lengths, status, labels = model["limitations"]
    assert "no input RAW_IMAGE_LENGTH: images do not share a call" in lengths
    assert "no output IMAGE_STATUS" in status
    assert labels.startswith("classifier/config.pbtxt: output has no label_filename")
    (endpoint,) = client.get("/health/ready").json()["endpoints"]
    assert endpoint["warnings"] == model["limitations"]
    findings = asyncio.run(tritons(Settings(_env_file=None, triton_url=own_triton.url)))
    by_check = {finding.check: finding for finding in findings}
    assert by_check["inference"].level is Level.OK
    assert by_check["model"].level is Level.WARN
    assert all(limitation in by_check["model"].text for limitation in model["limitations"])


def test_padded_rows_share_calls(runtime, tmp_path_factory, tmp_path):
    models = write_repository(tmp_path_factory.mktemp("padded"))
    (parameter,) = re.findall(r"^parameters \{.*\}$", PAGE.read_text(), re.MULTILINE)
    with (models / "ensemble_model" / "config.pbtxt").open("a") as config:
        config.write(f"{parameter}\n")
    with running_triton(runtime, models) as server, running_gateway(tmp_path / "log", triton_url=server.url) as gateway:
        with gateway.client() as http:
            (lengths, *_) = http.get("/models/ensemble_model").json()["limitations"]
            assert "only the gateway notices a file without its end" in lengths
            names = ["cat", "astronaut", "coffee"] * 20
            files = [("files", photo(name) + bytes(index % 3)) for index, name in enumerate(names)]
            answer = http.post("/predict", files=[*files, ("files", undecodable())])
        results = answer.json()["results"]
        assert [result["error"] is None for result in results] == [True] * len(names) + [False]
        assert np.ptp([result["predictions"][0]["score"] for result in results[:-1:3]]) < 1e-3
        assert gateway.metric("gateway_batch_images_sum") > gateway.metric("gateway_batch_images_count")
