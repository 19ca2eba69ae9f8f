"""The commands for models: options, invalid options, interrupts and completion."""

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from typer.testing import Result

from gateway.command_line.main import main
from gateway.command_line.terminal import print_status
from gateway.errors import UserError
from gateway.triton.configs import ModelConfig, ModelInstanceGroup, read_model_config
from gateway.triton.contract import SEQUENCE_MODEL
from gateway_models.blocking_triton import TritonRefused
from gateway_models.commands.group import explain_how_to_load
from gateway_models.networks.export import EFFICIENTNET_LITE0, default_entry
from gateway_models.networks.torchscript import without_deprecations
from gateway_models.repository.entry import Entry, read_entry
from gateway_models.repository.writing import rewrite
from tests.commands import gateway, refusal, usage_error
from tests.gateway_models.networks.builders import Endless, Head, save_labels, save_torchscript
from tests.processes import wait_for

HEAD_FLAGS = ["--crop", "32", "--resize", "40", "--mean", "0.5,0.4,0.3", "--std", "0.2,0.3,0.4"]


@pytest.fixture(scope="module")
def head_file(tmp_path_factory) -> Path:
    return save_torchscript(Head(), tmp_path_factory.mktemp("trained") / "head.pt")


@pytest.fixture
def add(head_file, tmp_path):
    """`gateway model add` of `head` with more options; of a repeated option, the last one counts."""

    def add(*options: str, source: Path | str = head_file, code: int = 0) -> Result:
        labels = save_labels(tmp_path / "five.txt")
        where = f"--model-repository={tmp_path / 'models'}"
        return gateway(
            "model", "add", source, "--name=head", f"--labels={labels}", *HEAD_FLAGS, where, *options, code=code
        )

    return add


def config_of(repository: Path, model: str) -> ModelConfig:
    return read_model_config(repository / model / "config.pbtxt")


def test_options_reach_the_configuration_files(add, tmp_path):
    sizes = [32, 64, 128, 256, 512, 1024]
    add(
        "--instances=3",
        "--gpus=0,1",
        "--no-cache",
        f"--preferred={','.join(map(str, sizes))}",
        "--max-batch-size=4096",
        "--queue-delay-us=100",
        "--resize-library=torch",
    )
    entry = read_entry(tmp_path / "models", "head")
    preprocessor = config_of(tmp_path / "models", "head_preprocessor")
    assert preprocessor.parameters["resize_library"].string_value == entry.spec.prepared.resize_library == "torch"
    config = config_of(tmp_path / "models", "head_classifier")
    (group,) = config.instance_group
    assert (group.kind, group.count, list(group.gpus)) == (ModelInstanceGroup.KIND_GPU, 3, [0, 1])
    assert not config_of(tmp_path / "models", "head").response_cache.enable
    # A warmup of 1,024 images would hold up every start.
    assert [warmup.batch_size for warmup in config.model_warmup] == [1, 32]
    assert config.max_batch_size == 4096
    assert list(config.dynamic_batching.preferred_batch_size) == sizes
    assert config.dynamic_batching.max_queue_delay_microseconds == 100


def test_repository_can_follow_streams(add, tmp_path):
    """One stateful model serves all models; a folder of its name that is there may be the user's own."""
    stateful = tmp_path / "models" / SEQUENCE_MODEL / "config.pbtxt"
    add()
    assert read_model_config(stateful).HasField("sequence_batching")
    stateful.write_text('backend: "python"')
    add("--name=second")
    assert stateful.read_text() == 'backend: "python"'
    assert "needs sequence_batching" in str(add("--name=third", f"--sequence-model={SEQUENCE_MODEL}", code=1).exception)


def test_add_explains_how_to_load_the_model_and_that_it_is_new(add, tmp_path, capsys):
    output = add("--version=3").output
    assert f"{tmp_path / 'models'} has no model 'head' yet: it is a new one, with version 3 alone" in output
    (hint,) = [line for line in output.splitlines() if "running service" in line]
    assert "POST /models/head/load" in hint
    assert "--triton" in hint
    explain_how_to_load("head", "127.0.0.1:8001")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--crop=0"], "a side is 1 to 4096 pixels"),
        (["--crop=100000", "--resize=100000"], "a side is 1 to 4096 pixels"),
        (["--resize=40.5"], "40.5 is not a whole number of pixels"),
        (["--mean=nan,0.5,0.5"], "mean is nan,0.5,0.5, but must be three numbers"),
        (["--std=inf,1,1"], "std is inf,1.0,1.0, but must be three numbers"),
        (["--std=0,1,1"], "std is 0.0,1.0,1.0"),
        (["--mean=124,116,104"], "divide 0–255 values by 255"),
        (["--resize-library=opencv"], "'opencv' is not a resize library; use pillow"),
        (["--instances=0"], "instances: 0 is not between 1 and 64"),
        (["--max-batch-size=0"], "the largest batch: 0 is not between 1 and 65,536"),
        (["--queue-delay-us=-1"], "-1 is not between 0 and 10,000,000"),
        (["--preferred=8,0"], "preferred batch size 0 is not between 1"),
        (["--gpus=-1"], "GPUs are numbers from 0"),
        (["--gpus=0:2"], "'0:2' must be whole numbers separated by commas"),
        (["--max-batch-size=8", "--preferred=16"], "preferred batch size 16 is not between 1 and the largest, 8"),
        (["--name=models/head"], "cannot be a model's name"),
        (["--version=0"], "versions are numbers from 1"),
    ],
)
def test_invalid_options_are_refused_and_nothing_is_written(add, tmp_path, options, reason):
    error = add(*options, code=1).exception
    assert isinstance(error, UserError)
    assert reason in str(error)
    assert not (tmp_path / "models").exists()


def test_line_breaks_of_names_are_escaped_in_errors(monkeypatch, capsys):
    """The line breaks of an error itself are kept."""
    monkeypatch.setattr(sys, "argv", ["gateway", "model", "add", "a\nerror: b.pt", "--name=a"])
    with pytest.raises(SystemExit):
        main()
    printed = capsys.readouterr().err
    assert "there is no file" in printed
    assert r"a\nerror: b.pt;" in printed
    print_status("reading a\ngateway | b.pt")
    assert capsys.readouterr().err == "gateway | reading a\\ngateway | b.pt\n"
    monkeypatch.setattr("gateway.command_line.main.app", lambda: (_ for _ in ()).throw(UserError("two lines:", "a\nb")))
    with pytest.raises(SystemExit):
        main()
    assert "error: two lines:\n  a\\nb" in capsys.readouterr().err


@pytest.mark.slow
def test_interrupted_add_leaves_no_files(tmp_path):
    with without_deprecations():
        torch.jit.script(Endless()).save(tmp_path / "endless.pt")
    labels = save_labels(tmp_path / "labels.txt")
    command = [sys.executable, "-m", "gateway", "model", "add", str(tmp_path / "endless.pt"), "--name=head"]
    process = subprocess.Popen(
        [*command, f"--labels={labels}", *HEAD_FLAGS, f"--model-repository={tmp_path / 'models'}"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    with process.stderr as stderr:
        assert any("trying it on images" in line for line in iter(stderr.readline, ""))
        # As a terminal does: to the command and to the process that it started.
        os.killpg(process.pid, signal.SIGINT)
        rest = stderr.read()
    assert process.wait(60) == 130
    assert "Traceback" not in rest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["endless.pt", "labels.txt", "models"]
    assert list((tmp_path / "models").iterdir()) == []
    with suppress(ProcessLookupError):
        wait_for(lambda: os.killpg(process.pid, 0))  # until the network's process has ended


@pytest.mark.parametrize("part", ["head_classifier", "head_preprocessor", "head"])
def test_failed_add_leaves_no_files(add, tmp_path, monkeypatch, part):
    move = shutil.move

    def failing(source, target):
        if Path(target) == tmp_path / "models" / part:
            move(source, target)
            raise KeyboardInterrupt
        return move(source, target)

    monkeypatch.setattr("gateway_models.repository.writing.shutil.move", failing)
    add(code=130)
    assert list((tmp_path / "models").iterdir()) == []


def test_failed_version_leaves_the_model_unchanged(own_head, tmp_path, monkeypatch):
    def files() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in own_head.rglob("*") if path.is_file()}

    before, calls = files(), []

    def failing(entry: Entry, repository: Path) -> None:
        rewrite(entry, repository)
        calls.append(entry)
        if len(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr("gateway_models.repository.writing.rewrite", failing)
    second = save_torchscript(Head(seed=1), tmp_path / "second.pt")
    gateway("model", "add", second, "--name=head", "--version=2", f"--model-repository={own_head}", code=130)
    assert files() == before
    assert sorted(path.name for path in own_head.iterdir()) == ["head", "head_classifier", "head_preprocessor"]


def test_help_has_twelve_options_and_help_all_the_others():
    def options(flag: str) -> set[str]:
        return set(re.findall(r"^│ {1,5}(--[\w-]+)", gateway("model", "add", flag).output, re.MULTILINE))

    common = options("--help") - {"--help", "--help-all"}
    assert len(common) == 12
    assert common | {"--input", "--tensorrt", "--sequence-model"} < options("--help-all")


def test_default_model_takes_no_options_of_a_model(tmp_path):
    assert "leave the model's options out" in usage_error("model", "add", "default", "--version=2")


def remove(repository: Path, name: str = "head", *options: str) -> str:
    """Why `gateway model remove` refuses a model, which stays."""
    error = refusal("model", "remove", name, f"--model-repository={repository}", *options)
    assert read_entry(repository, name)
    return error


def test_shipped_and_default_models_cannot_be_removed(own_head, tmp_path, monkeypatch):
    rewrite(default_entry(EFFICIENTNET_LITE0), tmp_path)
    error = remove(tmp_path, "ensemble_model")
    assert "is the model that comes with the project" in error
    assert "GATEWAY_MODEL=NAME" in error
    monkeypatch.setenv("GATEWAY_MODEL", "head")
    assert "is the default model (GATEWAY_MODEL)" in remove(own_head)
    monkeypatch.setenv("GATEWAY_MODEL", "another")
    gateway("model", "remove", "head", f"--model-repository={own_head}")


def test_removed_version_number_is_not_reused(add, tmp_path):
    """Triton caches responses by model name and version, also of removed models."""
    add()
    gateway("model", "remove", "head", f"--model-repository={tmp_path / 'models'}")
    again = str(add("--version=1", code=1).exception)
    assert "head has had a version 1 before" in again
    assert "the next one is 2" in again
    assert "it is version 2: earlier ones of this name were removed" in add().output
    assert sorted(read_entry(tmp_path / "models", "head").versions) == [2]


def test_unreachable_triton_is_reported_before_removal(own_head):
    assert "no Triton answers at 127.0.0.1:1" in remove(own_head, "head", "--triton=127.0.0.1:1")


def test_record_that_triton_loads_after_the_deadline_is_in_use(own_head, monkeypatch):
    class Slow:
        """A Triton whose load outlasts the call."""

        def __init__(self, address: str) -> None:
            self.address = address

        def __enter__(self):
            return self

        def __exit__(self, *exc: object) -> None:
            pass

        def unload(self, *models: str) -> None:
            pass

        def load(self, *models: str) -> None:
            raise TritonRefused("Deadline Exceeded")

        def config(self, model: str) -> ModelConfig:
            return config_of(own_head, model)

    monkeypatch.setattr("gateway_models.blocking_triton.BlockingTriton", Slow)
    gateway("model", "use", "head", "1", "--triton=127.0.0.1:1", f"--model-repository={own_head}")
    assert read_entry(own_head, "head").rollout.since is not None


def test_empty_and_missing_repository_are_reported(tmp_path):
    assert "there are no models in" in gateway("model", "list", f"--model-repository={tmp_path}").output
    missing = f"--model-repository={tmp_path / 'nowhere'}"
    assert "there is no model repository at" in refusal("model", "list", missing, kind=UserError)
