"""Python functions as models: refusals before they run, how they are called, and the results of their trial."""

import json
import sys
from pathlib import Path

import pytest
import torch

from gateway_models.networks.add import add
from gateway_models.networks.errors import ModelError
from gateway_models.networks.functions import find_function, load_staged
from gateway_models.networks.originals import original_answers
from gateway_models.repository.entry import EntryError, Outcome, Version
from gateway_models.repository.preprocessing import AS_PIXELS, Preprocessing
from gateway_models.repository.spec import INPUTS, Format, ModelSpec
from tests.commands import refusal
from tests.doubles.python_backend import Input, imported, python_backend
from tests.gateway_models.networks import builders
from tests.gateway_models.networks.builders import spec_of
from tests.gateway_models.networks.functions import COLOURS, own_modules, save_function, staged, tried

PIXELS = Preprocessing((40,), 32, "bilinear", **AS_PIXELS)
IMAGES = builders.PIXELS.float()


@pytest.fixture(autouse=True)
def _own_modules():
    with own_modules():
        yield


def loaded(folder: Path, code: str, name: str = "classify", **said):
    source = find_function(f"{save_function(folder, code)}:{name}")
    return load_staged(staged(source, folder / "staged", **said))[0]


def request(folder: Path, code: str = COLOURS, **changes) -> ModelSpec:
    changes = {"name": "mine", "preprocessing": PIXELS, "trust": True, **changes}
    return spec_of(f"{save_function(folder, code)}:classify", folder, classes=6, **changes)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("colours.py", r"which of its functions is it\? Use colours\.py:NAME"),
        ("absent.py:classify", "there is no file"),
    ],
)
def test_unusable_source_is_refused_with_its_reason(tmp_path, source, reason):
    (tmp_path / "colours.py").touch()
    with pytest.raises(ModelError, match=reason):
        find_function(f"{tmp_path}/{source}")


def test_files_of_a_function_are_copied_and_missing_ones_named(tmp_path):
    source = f"{save_function(tmp_path)}:classify"
    for name in ("data/words.txt", "data/._words.txt", "data/.git/config"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    staged(find_function(source, [tmp_path / "data"]), tmp_path / "copy")
    assert [path.name for path in tmp_path.glob("copy/code/data/*")] == ["words.txt"]
    with pytest.raises(ModelError, match=r"--include names .*weights\.npz, which does not exist"):
        find_function(source, [tmp_path / "weights.npz"]).digest()


def test_code_runs_only_if_it_is_trusted(tmp_path):
    """Neither looking at a function nor refusing it runs a line of its file."""
    code = f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n{COLOURS}"
    with pytest.raises(ModelError, match="add --trust"):
        add(request(tmp_path, code, preprocessing=None, trust=False), tmp_path / "models", print)
    assert not (tmp_path / "ran").exists()
    tried(f"{tmp_path}/colours.py:classify", tmp_path)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("annotation", "takes", "shape"),
    [
        ("", "uint8-nhwc", [2, 32, 32, 3]),
        (": np.ndarray", "uint8-nhwc", [2, 32, 32, 3]),
        (": NDArray[np.uint8]", "uint8-nhwc", [2, 32, 32, 3]),
        (": NDArray[np.float32]", "float32-nchw", [2, 3, 32, 32]),
        (": torch.Tensor", "float32-nchw", [2, 3, 32, 32]),
        (": Unknown", "uint8-nhwc", [2, 32, 32, 3]),
    ],
)
def test_annotation_determines_the_input_format(tmp_path, annotation, takes, shape):
    code = f"""
from __future__ import annotations
import numpy as np, torch
from numpy.typing import NDArray
seen = []

def classify(images{annotation}):
    seen.append((list(images.shape), type(images).__name__, str(images.dtype)))
    return np.zeros((len(images), 2))
"""
    function = loaded(tmp_path, code)
    assert function.input == takes
    function.scores(IMAGES)
    kind = "Tensor" if "Tensor" in annotation else "ndarray"
    dtype = "torch.float32" if kind == "Tensor" else takes.partition("-")[0]
    assert function.function.__globals__["seen"] == [(shape, kind, dtype)]


@pytest.mark.parametrize("wanted", INPUTS)
def test_pixels_arrive_unchanged_in_the_requested_order(tmp_path, wanted):
    code = "def classify(images):\n    return images.reshape(len(images), -1).astype('float32')\n"
    scores = loaded(tmp_path, code, input=wanted).scores(IMAGES)
    expected = IMAGES.permute(0, 2, 3, 1) if wanted.endswith("nhwc") else IMAGES
    assert torch.equal(scores, expected.reshape(2, -1))


@pytest.mark.parametrize(
    "code",
    [
        "def load():\n    return 3.0\n\ndef classify(images, factor):\n    return [[factor, 1.0]] * len(images)",
        "def load(device):\n    return {'cpu': 3.0}[device]\n\n"
        "def classify(images, factor=None, *, more=1):\n    return [[3.0, 1.0]] * len(images)",
        "def classify(images):\n    return {'scores': [[3.0, 1.0]] * len(images)}",
        "import numpy as np\ndef classify(images):\n    return [np.array([[3.0, 1.0]] * len(images))]",
    ],
)
def test_common_function_signatures_are_supported(tmp_path, code):
    assert loaded(tmp_path, code).scores(IMAGES).tolist() == [[3.0, 1.0]] * 2


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import absent_module\ndef classify(images): ...", r"imports 'absent_module', .* install it .* --include"),
        (
            "raise RuntimeError('no')\ndef classify(images): ...",
            r"be imported: RuntimeError: no \(colours\.py, line 1\)",
        ),
        ("async def classify(images): ...", "is a class, asynchronous or a generator"),
        ("def classify(images, one, two): ...", "needs 3 arguments"),
        ("classify = 3", "there is no such function"),
        ("def classify(", r"be imported: SyntaxError: .*\(colours\.py, line 1\)"),
        ("class classify:\n    pass", "is a class, asynchronous or a generator"),
        ("def load():\n    1 / 0\ndef classify(images): ...", "could not be loaded: ZeroDivisionError"),
    ],
)
def test_function_load_failure_is_one_sentence(tmp_path, code, reason):
    with pytest.raises(ModelError, match=reason):
        loaded(tmp_path, code)


@pytest.mark.parametrize(
    ("body", "changes", "reason"),
    [
        (
            "raise ValueError('odd')",
            {},
            r"uint8 \[2, 32, 32, 3\], it failed with ValueError: odd \(colours\.py, line 2\)",
        ),
        ("raise SystemExit(3)", {}, "it failed with SystemExit: 3"),
        ("return [[1.0, 2.0]]", {}, r"gave \[1, 2\] for a batch of 2, and one row of scores for each image"),
        ("return {'labels': ['cat'] * len(images)}", {}, "scores are numbers, and these are"),
        ("return [[1.0, 2.0]] * len(images)", {}, "there are 6 labels and the network has 2 classes"),
        ("return [[0.0] * 9] * len(images), [[3.0, 1.0]] * len(images)", {}, "it failed with ValueError"),
        ("import random; return [[random.random() * 9] * 6 for _ in images]", {}, "differs from call to call"),
        ("return images.mean((1, 2))", {"pixels": False}, r"takes pixels as uint8, .* leave out --mean and --std"),
        (
            "return images.mean((2, 3))",
            {"pixels_implied": True, "labels": 3, "said": {"input": "float32-nchw"}},
            "takes float32: use --mean and --std",
        ),
    ],
)
def test_trial_names_the_fault_of_a_function(tmp_path, body, changes, reason):
    path = save_function(tmp_path, f"def classify(images):\n    {body}\n")
    with pytest.raises(ModelError, match=reason):
        tried(f"{path}:classify", tmp_path, **changes)


@pytest.mark.parametrize(
    ("body", "reason"),
    [("raise ValueError('odd')", r"ValueError: odd \(colours\.py, line 2\)"), ("exit(3)", "SystemExit: 3")],
)
def test_original_that_fails_is_named_with_its_line(tmp_path, body, reason):
    source = f"{save_function(tmp_path, f'def classify(images):{chr(10)}    {body}{chr(10)}')}:classify"
    outcome = Outcome(6, "softmax", 0.0, Format.FUNCTION, input="uint8-nhwc")
    version = Version(ModelSpec(source, "mine", sha256=find_function(source).digest()), outcome)
    with pytest.raises(ModelError, match=reason):
        original_answers(version)(IMAGES)[0]


def test_probe_records_the_missing_activation(tmp_path):
    outcome = tried(f"{save_function(tmp_path)}:classify", tmp_path)
    assert (outcome.classes, outcome.ending, outcome.input) == (6, "logits", "uint8-nhwc")
    assert outcome.difference == 0
    written = json.loads((tmp_path / "staged" / "served.json").read_text())
    assert (written["activation"], written["input"]) == ("softmax", "uint8-nhwc")
    function, _ = load_staged(tmp_path / "staged")
    assert torch.allclose(function.probabilities(IMAGES).sum(dim=1), torch.ones(2))


def test_function_is_compared_with_the_original_unless_its_file_changes(tmp_path):
    source = f"{save_function(tmp_path)}:classify"
    outcome = tried(source, tmp_path)
    assert (outcome.classes, outcome.input) == (6, "uint8-nhwc")
    version = Version(ModelSpec(source, "mine", sha256=find_function(source).digest()), outcome)
    colours = IMAGES.mean(dim=(2, 3)) / 255
    expected = (torch.cat([colours, 1 - colours], dim=1) * 7).softmax(dim=1)
    assert torch.allclose(original_answers(version)(IMAGES)[0], expected, atol=1e-6)
    save_function(tmp_path, COLOURS + "\n# better now\n")
    with pytest.raises(EntryError, match=r"colours\.py, or a file that it needs, has changed since it was added"):
        original_answers(version)


def test_unknown_input_format_is_refused(tmp_path):
    source = f"{save_function(tmp_path)}:classify"
    error = refusal("model", "add", source, "--name=mine", "--crop=32", "--input=nhwc")
    assert "use one of uint8-nhwc" in error


PICKY = """
import numpy as np

calls = []

def classify(images):
    calls.append(len(images))
    if (images == 13).any():
        raise ValueError("thirteen")
    if (images == 14).any():
        raise SystemExit("fourteen")
    return images.reshape(len(images), -1)[:, :2].astype(np.float32)
"""


@pytest.fixture
def triton_model(tmp_path, monkeypatch):
    """A function's model.py, initialized as Triton would, with its log of errors as `log`."""
    log = python_backend(monkeypatch)
    function = find_function(f"{save_function(tmp_path, PICKY)}:classify")
    staged(function, tmp_path / "1")
    threads = torch.get_num_threads()
    model = imported(monkeypatch, tmp_path / "1" / "model.py").TritonPythonModel()
    model.initialize({"model_instance_kind": "CPU", "model_instance_name": "mine", "model_instance_device_id": "0"})
    model.log = log.errors
    yield model
    torch.set_num_threads(threads)


def of(value: int) -> dict[str, Input]:
    """A request of one image that is all one value."""
    return {"input__0": Input("input__0", torch.full((1, 3, 4, 4), float(value)))}


def test_only_the_request_that_fails_gets_an_error(triton_model):
    answers = triton_model.execute([of(1), of(13), of(2), of(14), of(3)])
    failed = "classify of colours.py failed with {}; Triton's log has the traceback"
    assert [answer.error and str(answer.error) for answer in answers] == [
        None, failed.format("ValueError"), None, failed.format("SystemExit"), None,
    ]  # fmt: skip
    assert [answers[number].outputs[0][1].tolist() for number in (0, 2, 4)] == [[[1, 1]], [[2, 2]], [[3, 3]]]
    # Once together, then each alone.
    assert sys.modules["colours"].calls == [5, 1, 1, 1, 1, 1]


def test_traceback_is_logged_once_per_batch(triton_model):
    answers = triton_model.execute([of(13), of(13), of(1)])
    assert [answer.error is None for answer in answers] == [False, False, True]
    (trace,) = triton_model.log
    assert trace.startswith("classify of colours.py failed: Traceback")
    assert trace.count("ValueError: thirteen") == 1
    # Another batch is another occasion.
    triton_model.execute([of(13)])
    assert len(triton_model.log) == 2
