"""From a trained network to a complete entry, or to a sentence that says why not."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter

from gateway.errors import UserError
from gateway.triton.codecs import breaches
from gateway.triton.configs import parameters, read_model_config
from gateway.values.rollout import Rollout
from gateway_local.elastic import Threads, write
from gateway_models.networks import isolation
from gateway_models.networks.add import add, add_changed, add_step
from gateway_models.networks.errors import ModelError
from gateway_models.networks.isolation import Job, Task, WorkFailed, start_process, work
from gateway_models.networks.torchscript import load_torchscript, without_deprecations
from gateway_models.repository.after import DeclaredStep
from gateway_models.repository.entry import EntryError, read_entry
from gateway_models.repository.manage import use
from gateway_models.repository.preprocessing import AS_PIXELS, Preprocessing
from gateway_models.repository.spec import Format, ImageTensor, ModelSpec, OpenVino, Precision, Serving
from gateway_models.repository.writing import PREPROCESSOR_CODE, rewrite
from tests.commands import gateway, refusal
from tests.doubles.backend import PNG
from tests.gateway_models.networks.builders import (
    Endless,
    Head,
    outputs,
    probabilities,
    save_labels,
    save_onnx,
    save_torchscript,
    spec_of,
)
from tests.gateway_models.networks.functions import save_function
from tests.gateway_models.repository.entries import SMALL, with_serving

HEAD_FLAGS = ["--crop", "32", "--resize", "40", "--mean", "0.5,0.4,0.3", "--std", "0.2,0.3,0.4"]


def request(folder: Path, **changes) -> ModelSpec:
    return spec_of(folder / "head.pt", folder, **changes)


def test_added_model_has_all_files_for_triton(added_head):
    repository, made = added_head
    ensemble, preprocessor, classifier = (
        read_model_config(repository / name / "config.pbtxt")
        for name in ("head", "head_preprocessor", "head_classifier")
    )
    assert breaches(ensemble) == []
    assert [step.model_name for step in ensemble.ensemble_scheduling.step] == ["head_preprocessor", "head_classifier"]
    assert ensemble.response_cache.enable
    assert dict(parameters(preprocessor)).items() >= made.spec.prepared.parameters().items()
    assert list(preprocessor.output[0].dims) == [3, 32, 32]
    assert classifier.platform == "pytorch_libtorch"
    assert list(classifier.output[0].dims) == [5]
    assert [warmup.batch_size for warmup in classifier.model_warmup] == [1, 4, 8]
    assert [group.count for group in (*preprocessor.instance_group, *classifier.instance_group)] == [0, 0]
    sized = read_model_config(repository / "head_classifier" / "configs" / "sized.pbtxt")
    assert list(sized.dynamic_batching.preferred_batch_size) == [4, 8]
    assert sized.instance_group[0].count >= 1
    labels = (repository / "head_classifier" / classifier.output[0].label_filename).read_text().splitlines()
    assert labels[4] == "class 4"
    code, shipped = (
        {path.name for path in folder.glob("*.py")}
        for folder in (repository / "head_preprocessor/1", PREPROCESSOR_CODE)
    )
    assert code == shipped
    assert not list(repository.glob(".*"))


def test_written_network_is_frozen_and_gives_original_answers(added_head):
    repository, made = added_head
    network = load_torchscript(made.model_file(repository, 1))
    images = torch.randn(3, 3, 32, 32)
    assert torch.allclose(outputs(network, images), probabilities(Head(), images), atol=1e-6)
    assert list(network.parameters()) == []
    assert made.versions[1].outcome.difference < 1e-6


@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ({"name": "new", "format": Format.ONNX, "precision": Precision.BF16}, ModelError, "no bf16 convolutions"),
        ({"version": 1}, EntryError, "has had a version 1 already; the next one is 2"),
        (
            {},
            EntryError,
            "has a model 'head' already: use --version N .*, or remove it first: gateway model remove head ",
        ),
        ({"name": "head_classifier"}, EntryError, "already exists and was not written by this command"),
        (
            {"version": 2, "preprocessing": replace(SMALL, mean=(0.0,) * 3)},
            EntryError,
            "prepares its images differently .*mean.* another name",
        ),
        (
            {"version": 2, "serving": Serving(instances=4)},
            EntryError,
            "instances is None and not 4: leave the option out",
        ),
        ({"version": 2, "multi_label": True}, EntryError, "multi label is False and not True"),
        ({"version": 2, "labels": "abcde"}, EntryError, "its labels differ from the labels of the other versions"),
    ],
)
def test_refused_model_changes_nothing(own_head, tmp_path, changes, error, reason):
    save_torchscript(Head(), tmp_path / "head.pt")
    spec = request(tmp_path, **changes)
    if "labels" in changes:
        spec = replace(spec, labels=tmp_path / "own.txt")
        (tmp_path / "own.txt").write_text("\n".join(changes["labels"]))
    before = {path: path.read_bytes() for path in own_head.rglob("*") if path.is_file()}
    with pytest.raises(error, match=reason):
        add(spec, own_head, print)
    assert {path: path.read_bytes() for path in own_head.rglob("*") if path.is_file()} == before


def test_damaged_file_gives_a_message_without_traceback(tmp_path):
    whole = save_torchscript(Head(), tmp_path / "head.pt").read_bytes()
    damaged = bytearray(whole)
    middle = whole.index(b"code/__torch__")
    damaged[middle + 40 : middle + 400] = bytes(360)
    (tmp_path / "head.pt").write_bytes(damaged)
    with pytest.raises(UserError, match=r"head\.pt"):
        add(request(tmp_path), tmp_path / "models", print)


def test_name_that_is_not_utf_8_is_refused(tmp_path):
    source = save_torchscript(Head(), tmp_path / "head.pt").rename(tmp_path / "\udce9.pt")
    spec = replace(request(tmp_path), source=str(source))
    with pytest.raises(UserError, match="is not UTF-8: rename it"):
        add(spec, tmp_path / "models", print)


def test_network_that_never_returns_times_out(tmp_path, monkeypatch):
    monkeypatch.setattr(isolation, "TIMEOUT_SECONDS", 1)
    with without_deprecations():
        torch.jit.script(Endless()).save(tmp_path / "head.pt")
    with pytest.raises(WorkFailed, match="did not finish a batch within 1 s"):
        add(request(tmp_path), tmp_path / "models", print)


def test_output_that_is_not_utf_8_hides_no_progress(tmp_path, monkeypatch):
    """A user's function, or its libraries, may write anything."""
    program = tmp_path / "python"
    program.write_text(
        "#!/bin/sh\nread -r job\nprintf '\\377\\nprogress: trying it\\n' >&2\necho '{\"answer\": true}'\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    monkeypatch.setattr(isolation, "start_process", start_process)
    said: list[str] = []
    assert work(Job(request(tmp_path), "", 0, tmp_path, Task.STEP), said.append, TypeAdapter(bool))
    assert said == ["trying it"]


def test_command_writes_files_and_prints_example_calls(tmp_path, monkeypatch):
    """The call has the port of the settings and an image that exists."""
    monkeypatch.chdir(tmp_path)
    path, labels = save_torchscript(Head(), tmp_path / "head.pt"), save_labels(tmp_path / "labels.txt")
    options = ("--name=head", f"--labels={labels}", *HEAD_FLAGS, f"--model-repository={tmp_path}/m")
    output = gateway("model", "add", path, *options, GATEWAY_PORT="9123").output
    assert "ends in logits" in output
    assert (tmp_path / "m/head_classifier/1/model.pt").is_file()
    assert "gateway | trying it on images of 32×32" in output
    (call,) = [line for line in output.splitlines() if "curl" in line]
    assert call.endswith(" 'http://127.0.0.1:9123/predict?model=head'")
    assert Path(call.partition("files=@")[2].partition(" ")[0]).is_file()


THREE = Preprocessing((32,), 32, "bilinear", (0.1, 0.2, 0.3), (0.5,) * 3)
PIXELS = Preprocessing((40,), 32, "bilinear", **AS_PIXELS)
FUNCTION, RECIPE = "colours.py:classify", "recipe:efficientnet-lite0"
SCRIPT = "m.pt"
REFUSED = [
    (FUNCTION, {"trust": False}, r"colours\.py is code. It runs when it is tested here.* add --trust"),
    *(
        (FUNCTION, changes, "is served as it is: leave out --format")
        for changes in (
            {"format": Format.ONNX},
            {"precision": Precision.FP16},
            {"features": True},
            {"output": "logits"},
            {"tensor": ImageTensor.UINT8},
        )
    ),
    (FUNCTION, {"weights": "state.pth"}, "--weights only works with torchvision:ARCH"),
    (RECIPE, {"format": Format.FUNCTION}, r"--format function is for FILE\.py:NAME"),
    (SCRIPT, {"zero_shot": Path("labels.txt")}, "--zero-shot is for a CLIP-like model .* use --labels"),
    (SCRIPT, {"prompts": ("a {}",)}, "--prompt is for --zero-shot FILE"),
    (SCRIPT, {"include": (Path(),)}, "--include is for the files of a Python function"),
    (SCRIPT, {"serving": Serving(openvino=OpenVino.FP32)}, "run ONNX: add --format onnx"),
    (SCRIPT, {"grayscale": True, "preprocessing": THREE}, "--mean and --std are one number each"),
    (
        SCRIPT,
        {"format": Format.ONNX, "serving": Serving(cpu_runtime="torchscript")},
        "--cpu-runtime is for TorchScript",
    ),
]


@pytest.mark.parametrize(("source", "changes", "reason"), REFUSED)
def test_option_of_another_kind_of_source_is_refused(tmp_path, source, changes, reason):
    save_function(tmp_path)
    save_torchscript(Head(), tmp_path / SCRIPT)
    usual = {"classes": 6, "trust": True, "preprocessing": PIXELS} if source == FUNCTION else {}
    place = source if source == RECIPE else f"{tmp_path}/{source}"
    with pytest.raises(UserError, match=reason):
        add(spec_of(place, tmp_path, **{**usual, **changes}), tmp_path / "models", print)
    assert not (tmp_path / "models" / "head").exists()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--crop", "32"], "--crop cannot fully describe how images were prepared in training: add --mean, --std"),
        ([*HEAD_FLAGS, "--like", "ResNet50_Weights.IMAGENET1K_V2"], "--like and --resize both describe"),
        ([*HEAD_FLAGS, "--preferred", "eight"], "'eight' must be whole numbers"),
        ([*HEAD_FLAGS, "--pixels"], "--pixels leaves pixels as they are, and --mean and --std normalise them"),
    ],
)
def test_missing_or_conflicting_options_are_refused(tmp_path, options, reason):
    assert reason in refusal("model", "add", "head.pt", "--name", "head", *options, kind=UserError)


@pytest.mark.parametrize(("batch", "refused"), [("64", True), ("32", False)])
def test_default_that_is_given_contradicts_another_shared_value(own_head, tmp_path, batch, refused):
    rewrite(with_serving(read_entry(own_head, "head"), max_batch_size=32), own_head)
    better = save_torchscript(Head(seed=1), tmp_path / "better.pt")
    options = ("--name=head", "--version=2", f"--max-batch-size={batch}", f"--model-repository={own_head}")
    if refused:
        assert "max batch size is 32 and not 64" in refusal("model", "add", better, *options)
    else:
        gateway("model", "add", better, *options)


def test_show_has_the_threads_of_a_lone_image(own_head):
    def on_cpu() -> str:
        output = gateway("model", "show", "head", "--model-repository", own_head).output
        (line,) = [line for line in output.splitlines() if "on a CPU" in line]
        return " ".join(line.split())

    assert on_cpu() == "on a CPU onnxruntime"
    write(Threads(2, {1: 0.02, 2: 0.01}), read_entry(own_head, "head").model_file(own_head, 1))
    assert on_cpu() == "on a CPU onnxruntime, 2 threads for a lone image"


def test_list_and_show_print_the_model(added_head):
    where = ("--model-repository", added_head[0])
    lines = [line.split() for line in gateway("model", "list", *where).output.splitlines()]
    assert ["head", "5", "32×32", "torchscript", "fp32", "1", "in", "use"] in lines
    assert "resize shorter side 40 bilinear, crop 32" in gateway("model", "show", "head", *where).output
    missing = refusal("model", "show", "tail", *where)
    assert "no model 'tail'" in missing
    assert "there are: head" in missing


def test_same_file_changes_nothing_and_a_changed_one_is_the_next_version(tmp_path):
    """As `gateway up FILE` adds it; a file of before puts its version into use again."""
    repository, file = tmp_path / "models", save_onnx(Head(), tmp_path / "head.onnx")
    spec, first = spec_of(file, tmp_path), file.read_bytes()

    def up(spec: ModelSpec = spec) -> tuple[int, int, bool]:
        entry, number, changed = add_changed(spec, repository, lambda _: None)
        return entry.in_use, number, changed

    assert up() == (1, 1, True)
    assert up() == (1, 1, False)
    with pytest.raises(ModelError, match="--zero-shot is for a CLIP-like model"):
        up(replace(spec, zero_shot=spec.labels))
    save_onnx(Head(seed=1), file)
    assert up() == (2, 2, True)
    file.write_bytes(first)
    assert up() == (1, 1, True)
    (tmp_path / "red.png").write_bytes(PNG)
    described = replace(spec, description='A "head".', example=(tmp_path / "red.png",))
    assert [up(described), up(described)] == [(1, 1, True), (1, 1, False)]
    assert {each.spec.description for each in read_entry(repository, "head").versions.values()} == {'A "head".'}
    assert (repository / "head" / "example-1.png").read_bytes() == PNG
    _, calibrated = add_step(DeclaredStep(temperature=2), repository, "head", 1, lambda _: None)
    use(repository, "head", Rollout.of([str(calibrated)]))
    assert up() == (calibrated, calibrated, False), "a step after the same network stays in use"
    with pytest.raises(UserError, match="prepares its images differently"):
        up(replace(spec, preprocessing=replace(SMALL, resize_size=(41,))))
    save_labels(tmp_path / "labels.txt", 4)
    with pytest.raises(UserError, match="labels"):
        up()


def test_precision_that_tune_has_chosen_is_no_change_unless_another_is_asked_for(tmp_path):
    repository, spec = tmp_path / "models", spec_of(save_onnx(Head(), tmp_path / "head.onnx"), tmp_path)
    rewrite(add(spec, repository, print).changed(precision=Precision.FP16), repository)
    assert add_changed(spec, repository, print)[1:] == (1, False)
    assert add_changed(replace(spec, named=("precision",)), repository, print)[1:] == (2, True)
