"""Classifiers that take tensors, and an ensemble, on a real Triton, as docs/guides/existing-triton.md has them.

The wheel's Triton has no ONNX Runtime and no libtorch: the project's own Python-based backends run both networks.
"""

import asyncio
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from PIL import Image

from gateway.findings import Level
from gateway_local.doctor.tritons import tritons
from gateway_local.runtime.base import TritonRuntime
from gateway_local.server import EmbeddedTriton
from tests.deploy import test_scripts
from tests.gateway_client.bulk.running import rows_of, run
from tests.photos import PHOTOS, photo
from tests.processes import PROJECT, Gateway, running_gateway, wait_for
from tests.samples import encode, names, sample
from tests.settings import Settings
from tests.streaming import ask, opened
from tests.tritons import inferences, running_triton, stub_processes

PAGE = PROJECT / "docs" / "guides" / "existing-triton.md"
JPEG = {"content-type": "image/jpeg"}
TORCH, ONNX, PIXELS, CLASSIFIER = "flowers_torch", "flowers_onnx", "pixels", "head_classifier"
OTHERS = f"""
[models.{TORCH}]
resize_size = 40
crop_size = 32
mean = [0.485, 0.456, 0.406]
std = [0.229, 0.224, 0.225]
scores = "softmax"
labels = "flowers.txt"

[models.{PIXELS}]
resize_size = [32, 32]
crop_size = 32
datatype = "uint8"
layout = "nhwc"
embeddings = "FEATURES"
output = "SCORES"

[models.{CLASSIFIER}]
resize_size = 40
crop_size = 32
mean = [0.5, 0.4, 0.3]
std = [0.2, 0.3, 0.4]
labels = "flowers.txt"
"""
"""More models of the file: without batches, pixels in rows with embeddings, and the network of an ensemble."""
ONNX_CONFIG = """
name: "flowers_onnx"
platform: "onnxruntime_onnx"
max_batch_size: 16
dynamic_batching { }
input [ { name: "pixels" data_type: TYPE_FP32 dims: [ 3, 32, 32 ] } ]
output [ { name: "scores" data_type: TYPE_FP32 dims: [ 5 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
TORCH_CONFIG = """
name: "flowers_torch"
platform: "pytorch_libtorch"
max_batch_size: 0
input [ { name: "input__0" data_type: TYPE_FP32 dims: [ -1, 3, 32, 32 ] } ]
output [ { name: "output__0" data_type: TYPE_FP32 dims: [ -1, 5 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
PIXELS_CONFIG = """
name: "pixels" backend: "python" max_batch_size: 8
input [ { name: "IMAGE" data_type: TYPE_UINT8 dims: [ 32, 32, 3 ] } ]
output [
  { name: "SCORES" data_type: TYPE_FP32 dims: [ 3 ] },
  { name: "FEATURES" data_type: TYPE_FP32 dims: [ 4 ] }
]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
PIXELS_CODE = """
import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        pixels = np.from_dlpack(pb.get_input_tensor_by_name(request, "IMAGE")).astype(np.float32)
        scores = np.ascontiguousarray(pixels.mean((1, 2)) / 255)
        features = np.ones((len(pixels), 4), np.float32)
        return pb.InferenceResponse(
            [pb.Tensor.from_dlpack("SCORES", scores), pb.Tensor.from_dlpack("FEATURES", features)]
        )
"""


def write_models(folder: Path) -> None:
    """Write two models, each with a small network, and the page's file for the first one."""
    # Torch takes seconds to import, and this module is collected by every worker.
    from tests.gateway_models.networks.builders import Head, save_onnx, save_torchscript

    for name, config in ((TORCH, TORCH_CONFIG), (ONNX, ONNX_CONFIG)):
        (folder / "models" / name / "1").mkdir(parents=True, exist_ok=True)
        (folder / "models" / name / "config.pbtxt").write_text(config)
    (text,) = re.findall(r"`tensor_models\.toml`:\n\n```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (folder / "tensor_models.toml").write_text(text)
    save_torchscript(Head(seed=1), folder / "models" / TORCH / "1" / "model.pt")
    save_onnx(Head(seed=1), folder / "models" / ONNX / "1" / "model.onnx")
    (folder / "flowers.txt").write_text("cornflower\ndaisy\npoppy\nsunflower\nviolet\n")


@pytest.fixture(scope="module")
def repository(added_head: tuple[Path, object], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bare")
    models = Path(shutil.copytree(added_head[0], folder / "models"))
    write_models(folder)
    (models / PIXELS / "1").mkdir(parents=True)
    (models / PIXELS / "config.pbtxt").write_text(PIXELS_CONFIG)
    (models / PIXELS / "1" / "model.py").write_text(PIXELS_CODE)
    return models


@pytest.fixture(scope="module")
def tensor_models(repository: Path) -> Path:
    path = repository.parent / "tensor_models.toml"
    path.write_text(path.read_text() + OTHERS)
    (path.parent / "flowers.txt").write_text("".join(f"class {number}\n" for number in range(5)))  # as `head` has
    return path


@pytest.fixture(scope="module")
def bare_triton(runtime: TritonRuntime, repository: Path) -> Iterator[EmbeddedTriton]:
    with running_triton(runtime, repository) as server:
        yield server


@pytest.fixture(scope="module")
def gateway(
    bare_triton: EmbeddedTriton, tensor_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    log = tmp_path_factory.mktemp("gateway") / "gateway.log"
    with running_gateway(log, triton_url=bare_triton.url, tensor_models_file=tensor_models, model=ONNX) as running:
        yield running


@pytest.fixture
def client(gateway: Gateway) -> Iterator[httpx.Client]:
    with gateway.client() as http:
        yield http


def predictions(client: httpx.Client, model: str, files: list[bytes]) -> list[list[tuple[str, float]]]:
    answer = client.post("/predict", params={"model": model, "top_k": 5}, files=[("files", each) for each in files])
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    assert [result["error"] for result in results] == [None] * len(files)
    return [[(each["label"], each["score"]) for each in result["predictions"]] for result in results]


def test_network_gives_the_scores_that_its_ensemble_gives(client):
    """`head` is an ensemble of a preprocessor and `head_classifier`: the network gets the same bytes both ways."""
    files = [photo(name, kind) for name in ("cat", "coffee", "china") for kind in ("JPEG", "PNG", "WEBP", "BMP")]
    files += [sample(name).data for name in ("PNG RGBA 8 bit", "JPEG progressive")]
    tensors, ensemble = predictions(client, CLASSIFIER, files), predictions(client, "head", files)
    for one, other in zip(tensors, ensemble, strict=True):
        assert [label for label, _ in one] == [label for label, _ in other]
        assert [score for _, score in one] == pytest.approx([score for _, score in other], abs=1e-6)


def test_torchscript_and_onnx_give_the_same_scores(client):
    files = [photo(name) for name in PHOTOS]
    onnx, torch = predictions(client, ONNX, files), predictions(client, TORCH, files)
    for one, other in zip(onnx, torch, strict=True):
        assert dict(one) == pytest.approx(dict(other), abs=1e-5)
        assert sum(score for _, score in one) == pytest.approx(1)


def test_pixels_arrive_in_rows(client):
    data = encode(Image.new("RGB", (40, 50), (102, 51, 0)), "PNG")
    assert dict(*predictions(client, PIXELS, [data])) == pytest.approx({"0": 0.4, "1": 0.2, "2": 0}, abs=1e-6)


def black(width: int, height: int, image_format: str = "PNG") -> bytes:
    return encode(Image.new("RGB", (width, height)), image_format)


@pytest.mark.parametrize("model", [ONNX, TORCH, PIXELS])
def test_bad_files_leave_the_others_their_answers(client, model):
    cat = photo("cat")
    rows = [
        ("cat.jpg", cat, None),
        ("notes.txt", b"hello", "unsupported_format"),
        ("empty.jpg", b"", "empty_file"),
        ("cut.jpg", cat[: len(cat) // 2], "truncated_image"),
        ("gif", sample(names("GIF")[0]).data, None),
        ("pixel.png", black(1, 1), None),
        ("long.png", black(2_000, 3), None),
        ("large.jpg", black(4_000, 3_000, "JPEG"), None),
        ("last.jpg", cat, None),
    ]
    answer = client.post("/predict", params={"model": model}, files=[("files", (name, data)) for name, data, _ in rows])
    results = answer.json()["results"]
    assert [result["error"] and result["error"]["code"] for result in results] == [code for *_, code in rows]
    assert results[0]["predictions"] == results[-1]["predictions"]


def test_models_are_described(client):
    models = {model["name"]: model for model in client.get("/models").json()["models"]}
    assert set(models) == {"head", ONNX, TORCH, PIXELS, CLASSIFIER}
    onnx, pixels = models[ONNX], models[PIXELS]
    assert (onnx["ready"], onnx["classes"], onnx["tensor"], onnx["labels"][0]) == (True, 5, "fp32", "class 0")
    assert (onnx["resize_size"], onnx["crop_size"], onnx["input_height"]) == ([40], [32, 32], 32)
    assert (pixels["tensor"], pixels["embedding_size"], pixels["steps"]) == ("uint8", 4, [])
    assert pixels["limitations"] == ["pixels has no labels: class numbers are the labels"]
    assert onnx["limitations"] == []


def test_embeddings_heat_maps_and_v2_are_answered(client):
    cat = photo("cat")
    answer = client.post("/embed", params={"model": PIXELS}, content=cat, headers=JPEG)
    assert answer.status_code == 200, answer.text
    assert "1.0,1.0,1.0,1.0" in answer.text.replace(" ", "")
    answer = client.post("/explain", params={"model": ONNX, "masks": 50}, content=cat, headers=JPEG)
    assert answer.json()["explanation"]["masks"] == 50
    answer = client.post(
        "/predict",
        params={"model": ONNX, "frames": 2},
        content=sample(names("GIF")[0]).data,
        headers={"content-type": "image/gif"},
    )
    assert answer.status_code == 200, answer.text
    assert client.get(f"/v2/models/{ONNX}").json()["outputs"]
    for path in ("/", "/docs"):
        assert client.get(path).status_code == 200


@pytest.mark.parametrize("model", [ONNX, TORCH])
def test_bulk_and_a_stream_are_answered(gateway, photos, tmp_path, model):
    run(photos, "--gateway", gateway.url, "--model", model, "--out", tmp_path / "out.jsonl")
    assert [row["status"] for row in rows_of(tmp_path / "out.jsonl")] == ["ok"] * len(PHOTOS)
    with opened(gateway.url, f"?smoothing=none&top_k=1&model={model}") as stream:
        assert len(ask(stream, photo("cat"))["predictions"]) == 1


@pytest.mark.parametrize("model", [ONNX, TORCH, PIXELS])
def test_probe_of_the_chart_gets_its_inference(bare_triton, model):
    before = inferences(bare_triton, model)
    assert test_scripts.run("alive.py", model, "60", bare_triton.http_url).stderr == ""
    wait_for(lambda: inferences(bare_triton, model) > before)


@pytest.mark.parametrize("model", [ONNX, TORCH])
def test_killed_process_is_recovered(bare_triton, client, model):
    for process in stub_processes(bare_triton, model):
        process.kill()
    wait_for(lambda: client.post("/predict", params={"model": model}, content=photo("cat"), headers=JPEG).is_success)


@pytest.mark.parametrize("model", [ONNX, PIXELS])
def test_doctor_sends_a_tensor_through_the_model(bare_triton, tensor_models, model):
    settings = Settings(_env_file=None, triton_url=bare_triton.url, tensor_models_file=tensor_models, model=model)
    levels = {each.check: each.level for each in asyncio.run(tritons(settings))}
    assert levels["model"] in {Level.OK, Level.WARN}
    assert levels["inference"] is Level.OK


def test_file_that_does_not_fit_is_reported(bare_triton, tmp_path):
    path = tmp_path / "models.toml"
    path.write_text(f'[models.{ONNX}]\nresize_size = 64\ncrop_size = 64\ndatatype = "uint8"\n')
    log = tmp_path / "gateway.log"
    with running_gateway(
        log, triton_url=bare_triton.url, tensor_models_file=path, model=ONNX, wait_ready=False
    ) as gateway:
        with gateway.client() as http:
            answer = http.post("/predict", content=photo("cat"), headers=JPEG)
            assert answer.status_code == 503
            described = http.get(f"/models/{ONNX}").json()
        assert not described["ready"]
        assert "is FP32, and the gateway is told to send uint8" in described["reason"]
