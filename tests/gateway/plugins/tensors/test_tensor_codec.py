"""Models that take tensors: their codec, against configurations and answers, and the file that declares them."""

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelInferResponse

from gateway.environment import SettingsError, load_settings
from gateway.errors import ContractBroken, InferenceFailed
from gateway.inference.backend import Call
from gateway.ingest.resizing import Resize, TensorInput
from gateway.plugins.tensors.settings import ModelFileError, read_models
from gateway.plugins.tensors.tensor_codec import MOST_IMAGES, TensorModel
from gateway.timing import Deadline
from gateway.triton.codecs import Codecs

TENSOR = TensorInput(Resize((4,), "bilinear"), (2, 4), (0.5,) * 3, (0.5,) * 3)
PIXELS = TensorInput(Resize((4,), "bilinear"), (2, 4), (0.0,) * 3, (1.0,) * 3, "uint8", "nhwc")
INPUT = 'input { name: "data" data_type: TYPE_FP32 dims: [3, 2, 4] }'
OUTPUT = 'output { name: "scores" data_type: TYPE_FP32 dims: 3 }'
FEATURES = 'output { name: "vector" data_type: TYPE_FP16 dims: [1, 2] }'


def config(*parts: str, batch: int = 8) -> ModelConfig:
    return text_format.Parse(" ".join((f'name: "net" max_batch_size: {batch}', *parts)), ModelConfig())


def call(*images: bytes) -> Call:
    return Call(images, "net", "2", None, Deadline.after(60), "an id")


@pytest.mark.parametrize(
    ("parts", "batch", "has_batches", "most"),
    [
        ((INPUT,), 8, True, 8),
        ((INPUT.replace("3, 2, 4", "3, -1, -1"),), 8, True, 8),
        ((INPUT.replace("3, 2, 4", "-1, 3, 2, 4"),), 0, True, MOST_IMAGES),
        ((INPUT.replace("3, 2, 4", "1, 3, 2, 4"),), 0, True, 1),
        ((INPUT,), 0, False, 1),
    ],
)
def test_batches_follow_the_configuration(parts, batch, has_batches, most):
    codec = TensorModel(TENSOR).codec(config(*parts, OUTPUT, batch=batch))
    assert (codec.has_batches, codec.most_images, codec.classes) == (has_batches, most, 3)
    images = [bytes(TENSOR.nbytes)] * most
    request = ModelInferRequest.FromString(codec.request(call(*images), 5, 1.5, embeddings=False))
    (given,) = request.inputs
    assert (given.name, given.datatype) == ("data", "FP32")
    assert list(given.shape) == ([most, 3, 2, 4] if has_batches else [3, 2, 4])
    assert request.raw_input_contents == [b"".join(images)]
    assert (request.model_name, request.model_version, request.id) == ("net", "2", "an id")
    assert request.parameters["timeout"].int64_param == 1_500_000


@pytest.mark.parametrize(
    ("model", "parts", "batch", "fault"),
    [
        (TensorModel(PIXELS), (INPUT, OUTPUT), 8, "input 'data' is FP32, and the gateway is told to send uint8"),
        (TensorModel(TENSOR), (INPUT.replace("2, 4", "4, 2"), OUTPUT), 8, r"has dims \[3, 4, 2\]"),
        (TensorModel(TENSOR), (INPUT.replace("3, 2, 4", "24"), OUTPUT), 8, r"has dims \[24\]"),
        (TensorModel(TENSOR), (INPUT.replace("3, 2, 4", "8, 3, 2, 4"), OUTPUT), 0, "always takes 8 images"),
        (TensorModel(TENSOR, labels=("a", "b")), (INPUT, OUTPUT), 8, "has 3 classes, and there are 2 labels"),
        (TensorModel(TENSOR, output="other"), (INPUT, OUTPUT), 8, "there is no output 'other', but scores"),
        (TensorModel(TENSOR), (INPUT, OUTPUT, FEATURES), 8, "there are several outputs, scores, vector"),
        (TensorModel(TENSOR), (INPUT, OUTPUT.replace("FP32", "STRING")), 8, "output 'scores' is STRING"),
    ],
)
def test_what_does_not_fit_is_named(model, parts, batch, fault):
    with pytest.raises(ContractBroken, match=f"^net/config.pbtxt: .*{fault}"):
        Codecs({"net": model}).of(config(*parts, batch=batch))


def answer(**outputs: np.ndarray) -> ModelInferResponse:
    response = ModelInferResponse(model_name="net", model_version="2")
    for name, values in outputs.items():
        datatype = {"float32": "FP32", "float16": "FP16", "float64": "FP64", "int32": "INT32"}[values.dtype.name]
        response.outputs.add(name=name, datatype=datatype, shape=values.shape)
        response.raw_output_contents.append(values.tobytes())
    return response


LOGITS = np.array([[0, 2, 1], [5, 5, 0]], np.float32)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 1, 1)])
async def test_best_classes_come_first_with_their_labels(kind, shape):
    codec = TensorModel(TENSOR, labels=("a", "b", "c")).codec(config(INPUT, OUTPUT))
    response = answer(scores=LOGITS.astype(kind).reshape(shape))
    rows = await codec.read(response, rows=2, class_count=2, embeddings=False)
    assert [row.model_version for row in rows] == ["2", "2"]
    best = [[(each.label, each.class_id, each.score) for each in row.predictions] for row in rows]
    assert best == [[("b", 1, 2), ("c", 2, 1)], [("a", 0, 5), ("b", 1, 5)]]


async def test_activations_make_probabilities():
    for activation, probabilities, multi_label in (
        ("softmax", np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True), False),
        ("sigmoid", 1 / (1 + np.exp(-LOGITS)), True),
        ("none", LOGITS, False),
    ):
        codec = TensorModel(TENSOR, activation=activation).codec(config(INPUT, OUTPUT))
        assert codec.multi_label == multi_label
        rows = await codec.read(answer(scores=LOGITS), rows=2, class_count=None, embeddings=False)
        assert np.allclose([row.scores for row in rows], probabilities)
    large = np.array([[1_000, -1_000, 0]], np.float32)
    codec = TensorModel(TENSOR, activation="softmax").codec(config(INPUT, OUTPUT))
    (row,) = await codec.read(answer(scores=large), rows=1, class_count=None, embeddings=False)
    assert row.scores.tolist() == [1, 0, 0]


async def test_embeddings_are_read_if_they_are_requested():
    codec = TensorModel(TENSOR, output="scores", embeddings="vector").codec(config(INPUT, OUTPUT, FEATURES))
    assert codec.embedding_size == 2
    request = ModelInferRequest.FromString(codec.request(call(bytes(96)), None, 1, embeddings=True))
    assert [output.name for output in request.outputs] == ["scores", "vector"]
    vectors = np.array([[[1, 2]], [[3, 4]]], np.float16)
    rows = await codec.read(answer(scores=LOGITS, vector=vectors), rows=2, class_count=1, embeddings=True)
    assert [row.embedding.tolist() for row in rows] == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    "response",
    [
        answer(other=LOGITS),
        answer(scores=LOGITS.astype(np.int32)),
        answer(scores=np.zeros((0,), np.float32)),
        answer(scores=np.zeros(7, np.float32)),
    ],
)
async def test_other_answers_fail(response):
    codec = TensorModel(TENSOR).codec(config(INPUT, OUTPUT))
    with pytest.raises(InferenceFailed):
        await codec.read(response, rows=2, class_count=1, embeddings=False)


def test_forgeable_cache_is_a_limitation():
    codec = TensorModel(TENSOR, labels=("a", "b", "c")).codec(config(INPUT, OUTPUT, "response_cache { enable: true }"))
    (cache,) = codec.limitations(config(INPUT, OUTPUT))
    assert "its keys can be forged" in cache


VALID = "resize_size = 256\ncrop_size = 224\nmean = [0.1, 0.2, 0.3]\nstd = [1, 1, 0.5]\n"


def written(folder, table: str, name: str = "net"):
    path = folder / "models.toml"
    path.write_text(f"[models.{name}]\n{table}")
    return path


def test_tables_become_models(tmp_path):
    (tmp_path / "labels.txt").write_text("a\nb, c\n")
    path = written(
        tmp_path,
        f'{VALID}scores = "softmax"\nlabels = "labels.txt"\n[models.other]\n'
        'resize_size = [60, 90]\ncrop_size = [50, 80]\ndatatype = "uint8"\nlayout = "nhwc"\n'
        'channels = "bgr"\ninterpolation = "bicubic"\ndecode = "fast"\ninput = "x"\noutput = "y"\n',
    )
    assert read_models(path) == {
        "net": TensorModel(
            TensorInput(Resize((256,), "bilinear"), (224, 224), (0.1, 0.2, 0.3), (1, 1, 0.5)), "softmax", ("a", "b, c")
        ),
        "other": TensorModel(
            TensorInput(
                Resize((60, 90), "bicubic", fast=True), (50, 80), (0.0,) * 3, (1.0,) * 3, "uint8", "nhwc", "bgr"
            ),
            input="x",
            output="y",
        ),
    }


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ("crop_size = 2", "models.net.resize_size"),
        (f"{VALID}size = 3", "models.net.size"),
        (f"{VALID}layout = 'chwn'", "models.net.layout"),
        (f"{VALID}interpolation = 'cubic'", "interpolation must be one of"),
        (f"{VALID}datatype = 'uint8'", "leave out mean and std"),
        ("resize_size = 32\ncrop_size = 32", "fp32 needs mean and std"),
        ("resize_size = 32\ncrop_size = 40\ndatatype = 'uint8'", "black borders"),
        (VALID.replace("0.5", "0"), "std has a 0"),
        (VALID.replace("256", "100000"), "models.net.resize_size"),
        (f"{VALID}labels = 'missing.txt'", "models.net.labels: missing.txt"),
        ("crop_size = \n", "line 2"),
    ],
)
def test_fault_is_named_with_its_place(tmp_path, table, fault):
    path = written(tmp_path, table)
    with pytest.raises(ModelFileError, match=fault) as raised:
        read_models(path)
    assert str(path) in str(raised.value)


def test_wrong_file_stops_the_start(tmp_path, monkeypatch):
    monkeypatch.setenv("GATEWAY_TENSOR_MODELS_FILE", str(tmp_path / "none.toml"))
    with pytest.raises(SettingsError, match=r"GATEWAY_TENSOR_MODELS_FILE: .*none\.toml: No such file"):
        load_settings()
    monkeypatch.setenv("GATEWAY_TENSOR_MODELS_FILE", str(written(tmp_path, VALID)))
    monkeypatch.setenv("GATEWAY_DECODE", "never")
    with pytest.raises(SettingsError, match="GATEWAY_DECODE=never contradicts GATEWAY_TENSOR_MODELS_FILE"):
        load_settings()
