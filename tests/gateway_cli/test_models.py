"""The commands for models: options, invalid options, interrupts and completion."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner, Result

from gateway.errors import UserError
from gateway.triton.contract import SEQUENCE_MODEL
from gateway.triton.model_config import read_model_config
from gateway_cli.main import app, main
from gateway_cli.model.group import explain_how_to_load
from gateway_cli.terminal import print_status
from gateway_machine.gpus import gpu_count
from gateway_models.networks.export import EFFICIENTNET_LITE0, default_entry
from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.torchscript import without_deprecations
from gateway_models.repository.entry import Entry, EntryError, read_entry
from gateway_models.repository.writing import rewrite
from tests.gateway_models.networks.builders import Endless, Head, save_labels, save_torchscript

HEAD_FLAGS = ["--crop", "32", "--resize", "40", "--mean", "0.5,0.4,0.3", "--std", "0.2,0.3,0.4"]


@pytest.fixture(scope="module")
def head_file(tmp_path_factory) -> Path:
    return save_torchscript(Head(), tmp_path_factory.mktemp("trained") / "head.pt")


@pytest.fixture
def add(head_file, tmp_path):
    """`gateway model add` of `head` with further options; of repeated options, the last one counts."""

    def add(*options: str, source: Path | str = head_file) -> Result:
        labels = save_labels(tmp_path / "five.txt")
        command = ["model", "add", str(source), "--name=head", f"--labels={labels}", *HEAD_FLAGS]
        return CliRunner().invoke(app, [*command, f"--model-repository={tmp_path / 'models'}", *options])

    return add


def test_options_reach_the_configuration_files(add, tmp_path):
    sizes = [32, 64, 128, 256, 512, 1024]
    result = add(
        "--instances=3",
        f"--preferred={','.join(map(str, sizes))}",
        "--max-batch-size=4096",
        "--queue-delay-us=100",
        "--cache-classifier",
        "--resize-library=torch",
    )
    assert result.exit_code == 0, result.output
    preprocessor = read_model_config(tmp_path / "models" / "head_preprocessor" / "config.pbtxt")
    assert preprocessor.parameters["resize_library"].string_value == "torch"
    assert read_entry(tmp_path / "models", "head").preprocessing.resize_library == "torch"
    config = read_model_config(tmp_path / "models" / "head_classifier" / "config.pbtxt")
    assert config.response_cache.enable
    assert config.instance_group[0].count == 3
    assert config.max_batch_size == 4096
    assert list(config.dynamic_batching.preferred_batch_size) == sizes
    assert config.dynamic_batching.max_queue_delay_microseconds == 100
    assert "cache on, and on the network" in result.output
    assert read_entry(tmp_path / "models", "head").serving.cache_classifier


def test_repository_can_follow_streams(add, tmp_path):
    """One stateful model serves all models; a folder of its name that is there may be the user's own."""
    stateful = tmp_path / "models" / SEQUENCE_MODEL / "config.pbtxt"
    assert add().exit_code == 0
    assert read_model_config(stateful).HasField("sequence_batching")
    stateful.write_text('backend: "python"')
    assert add("--name=second").exit_code == 0
    assert stateful.read_text() == 'backend: "python"'
    refused = add("--name=third", "--stream")
    assert "needs sequence_batching" in str(refused.exception)


def test_add_without_url_explains_how_to_load_the_model(add):
    result = add()
    assert result.exit_code == 0, result.output
    (hint,) = [line for line in result.output.splitlines() if "running service" in line]
    assert "POST /models/head/load" in hint
    assert "--triton" in hint


def test_no_load_hint_with_url(capsys):
    explain_how_to_load("head", "127.0.0.1:8001")
    assert capsys.readouterr().err == ""


def test_preferred_batch_sizes_fit_a_small_maximum(add, tmp_path):
    assert add("--max-batch-size=4").exit_code == 0
    config = read_model_config(tmp_path / "models" / "head_classifier" / "config.pbtxt")
    assert not config.response_cache.enable
    assert [warmup.batch_size for warmup in config.model_warmup] == [1, 4]
    sized = read_model_config(tmp_path / "models" / "head_classifier" / "configs" / "sized.pbtxt")
    assert list(sized.dynamic_batching.preferred_batch_size) == [4]


@pytest.mark.skipif(gpu_count() > 1, reason="this machine has the GPUs")
def test_missing_gpus_are_a_warning(add, tmp_path):
    """A model may be added on a laptop, in CI or in a build, and served elsewhere."""
    result = add("--gpus", "0:2,1:1")
    assert result.exit_code == 0, result.output
    assert "warning: --gpus names GPU 0, and this machine has no GPU that its CUDA driver can see" in result.output
    config = read_model_config(tmp_path / "models" / "head_classifier" / "config.pbtxt")
    assert [(group.count, list(group.gpus)) for group in config.instance_group] == [(2, [0]), (1, [1])]
    assert "GPU 0, 1" in result.output


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--crop=0"], "a side is 1 to 4096 pixels"),
        (["--crop=-32"], "a side is 1 to 4096 pixels"),
        (["--crop=100000", "--resize=100000"], "a side is 1 to 4096 pixels"),
        (["--resize=40.5"], "40.5 is not a whole number of pixels"),
        (["--resize=nan"], "nan is not a whole number of pixels"),
        (["--mean=nan,0.5,0.5"], "mean is nan,0.5,0.5, but must be three numbers"),
        (["--std=inf,1,1"], "std is inf,1.0,1.0, but must be three numbers"),
        (["--std=0,1,1"], "std is 0.0,1.0,1.0"),
        (["--mean=124,116,104"], "divide 0–255 values by 255"),
        (["--resize-library=pillow-12.1"], "'pillow-12.1' is not a resize library; use pillow"),
        (["--instances=0"], "instances: 0 is not between 1 and 64"),
        (["--instances=1000"], "instances: 1000 is not between 1 and 64"),
        (["--max-batch-size=0"], "the largest batch: 0 is not between 1 and 65,536"),
        (["--queue-delay-us=-1"], "-1 is not between 0 and 10,000,000"),
        (["--preferred=8,0"], "preferred batch size 0 is not between 1"),
        (["--gpus=one"], "'one' must be GPUs such as 0,1"),
        (["--gpus=0:1:2"], "'0:1:2' must name each GPU once"),
        (["--gpus=0,0:2"], "'0,0:2' must name each GPU once"),
        (["--gpus=0:0"], "use between 1 and 64"),
        (["--max-batch-size=8", "--preferred=16"], "preferred batch size 16 is not between 1 and the largest, 8"),
        (["--name="], "'' cannot be a model's name"),
        (["--name=models/head"], "cannot be a model's name"),
        (["--version=0"], "versions are numbers from 1"),
    ],
)
def test_invalid_options_are_refused_and_nothing_is_written(add, tmp_path, options, reason):
    result = add(*options)
    assert isinstance(result.exception, UserError)
    assert reason in str(result.exception)
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("option", ["--tolerance=nan", "--tolerance=2", "--tolerance=-1"])
def test_tolerance_is_a_share(option):
    result = CliRunner().invoke(app, ["model", "parity", "head", option])
    assert result.exit_code == 2
    assert "--tolerance" in result.output


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (Head().state_dict(), "is a state dict: it has weights but no network. Name the architecture"),
        ({"epoch": 1, "model_state_dict": Head().state_dict()}, "is a training checkpoint"),
        (nn.Linear(2, 2), "is a pickled module: loading it would run code from the file"),
    ],
    ids=["state dict", "checkpoint", "module"],
)
def test_torch_save_files_are_refused_with_advice(add, tmp_path, value, reason):
    torch.save(value, tmp_path / "head.pt")
    result = add(source=tmp_path / "head.pt")
    assert isinstance(result.exception, ModelFileError)
    assert reason in str(result.exception)
    assert "torch.export.save(torch.export.export(model.eval()," in str(result.exception)


def test_missing_file_and_plain_folder_are_refused_as_source(add, tmp_path):
    assert f"there is no file {tmp_path}/absent.pt" in str(add(source=tmp_path / "absent.pt").exception)
    assert f"{tmp_path} is a folder; SOURCE must be a file" in str(add(source=tmp_path).exception)


def test_line_break_of_a_file_name_is_escaped_in_errors(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gateway", "model", "add", "a\nerror: b.pt", "--name=a"])
    with pytest.raises(SystemExit):
        main()
    printed = capsys.readouterr().err
    assert "there is no file" in printed
    assert r"a\nerror: b.pt;" in printed
    print_status("reading a\ngateway | b.pt")
    assert capsys.readouterr().err == "gateway | reading a\\ngateway | b.pt\n"


def test_lines_of_an_error_are_printed_apart(monkeypatch, capsys):
    monkeypatch.setattr("gateway_cli.main.app", lambda: (_ for _ in ()).throw(UserError("two lines:", "a\nb")))
    with pytest.raises(SystemExit):
        main()
    assert "error: two lines:\n  a\\nb" in capsys.readouterr().err


def test_duplicate_model_name_is_refused(add):
    assert add().exit_code == 0
    again = add()
    assert isinstance(again.exception, EntryError)
    advice = "use --version N to add a version, or remove it first: gateway model remove head --model-repository "
    assert advice in str(again.exception)


def test_version_of_a_missing_model_is_refused(add, tmp_path):
    added = add("--version=3")
    assert f"{tmp_path / 'models'} has no model 'head' yet: it is a new one, with version 3 alone" in added.output


def test_labels_in_windows_encoding_are_read(add, tmp_path):
    (tmp_path / "labels.txt").write_bytes("\ufeffdaisy\r\nrose\r\ntulip\r\npoppy\r\nÄster\r\n\r\n".encode())
    assert add(f"--labels={tmp_path / 'labels.txt'}").exit_code == 0
    written = (tmp_path / "models" / "head_classifier" / "labels.txt").read_bytes()
    assert written == "daisy\nrose\ntulip\npoppy\nÄster\n".encode()


def test_duplicate_label_is_reported(add, tmp_path):
    (tmp_path / "labels.txt").write_text("daisy\nrose\ndaisy\npoppy\naster\n")
    result = add(f"--labels={tmp_path / 'labels.txt'}")
    assert result.exit_code == 0
    assert "some labels occur more than once" in result.output
    assert "'daisy' on lines 1, 3" in result.output


@pytest.mark.parametrize(
    ("text", "reason"), [(b"\nrose\ntulip\n", "no label on line 1"), (b"\xff\xfe\x00", "cannot read the labels")]
)
def test_invalid_labels_are_refused(add, tmp_path, text, reason):
    (tmp_path / "labels.txt").write_bytes(text)
    result = add(f"--labels={tmp_path / 'labels.txt'}")
    assert reason in str(result.exception)


@pytest.mark.slow
def test_interrupted_add_leaves_no_files(tmp_path):
    with without_deprecations():
        torch.jit.script(Endless()).save(tmp_path / "endless.pt")
    labels = save_labels(tmp_path / "labels.txt")
    command = [sys.executable, "-m", "gateway_cli", "model", "add", str(tmp_path / "endless.pt"), "--name=head"]
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
    deadline = time.monotonic() + 60
    while _group_lives(process.pid):
        assert time.monotonic() < deadline, "the network's process lives on"


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("part", ["head_classifier", "head_preprocessor", "head"])
def test_failed_add_leaves_no_files(add, tmp_path, monkeypatch, part):
    move = shutil.move

    def failing(source, target):
        if Path(target) == tmp_path / "models" / part:
            move(source, target)
            raise KeyboardInterrupt
        return move(source, target)

    monkeypatch.setattr("gateway_models.repository.writing.shutil.move", failing)
    assert add().exit_code == 130
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
    options = ["--version=2", f"--model-repository={own_head}"]
    assert CliRunner().invoke(app, ["model", "add", str(second), "--name=head", *options]).exit_code == 130
    assert files() == before
    assert sorted(path.name for path in own_head.iterdir()) == ["head", "head_classifier", "head_preprocessor"]


def test_shell_completion_lists_models_and_versions(own_head):
    def completed(words: str) -> list[str]:
        result = CliRunner().invoke(
            app,
            [],
            prog_name="gateway",
            env={
                "_GATEWAY_COMPLETE": "complete_bash",
                "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
                "COMP_WORDS": words,
                "COMP_CWORD": str(len(words.split(" ")) - 1),
            },
        )
        return result.output.split()

    assert completed(f"gateway model show --model-repository {own_head} he") == ["head"]
    assert completed(f"gateway model parity --model-repository {own_head} ta") == []


def test_shipped_model_cannot_be_removed(tmp_path):
    rewrite(default_entry(EFFICIENTNET_LITE0), tmp_path)
    result = CliRunner().invoke(app, ["model", "remove", "ensemble_model", f"--model-repository={tmp_path}"])
    assert isinstance(result.exception, EntryError)
    assert "is the model that comes with the project" in str(result.exception)
    assert "GATEWAY_MODEL=NAME" in str(result.exception)
    assert read_entry(tmp_path, "ensemble_model").classifier == "classifier"


def test_default_model_cannot_be_removed(own_head, monkeypatch):
    monkeypatch.setenv("GATEWAY_MODEL", "head")
    result = CliRunner().invoke(app, ["model", "remove", "head", f"--model-repository={own_head}"])
    assert "is the default model (GATEWAY_MODEL)" in str(result.exception)
    assert read_entry(own_head, "head")
    monkeypatch.setenv("GATEWAY_MODEL", "another")
    assert CliRunner().invoke(app, ["model", "remove", "head", f"--model-repository={own_head}"]).exit_code == 0


def test_removed_version_number_is_not_reused(add, tmp_path):
    """Triton caches responses by model name and version, also of removed models."""
    where = f"--model-repository={tmp_path / 'models'}"
    assert add().exit_code == 0
    assert CliRunner().invoke(app, ["model", "remove", "head", where]).exit_code == 0
    again = add("--version=1")
    assert "head has had a version 1 before" in str(again.exception)
    assert "the next one is 2" in str(again.exception)
    added = add()
    assert "it is version 2: earlier ones of this name were removed" in added.output
    assert sorted(read_entry(tmp_path / "models", "head").versions) == [2]


def test_unreachable_triton_is_reported_before_removal(own_head):
    options = ["--triton=127.0.0.1:1", f"--model-repository={own_head}"]
    result = CliRunner().invoke(app, ["model", "remove", "head", *options])
    assert "no Triton answers at 127.0.0.1:1" in str(result.exception)
    assert read_entry(own_head, "head")


def test_empty_and_missing_repository_are_reported(tmp_path):
    listed = CliRunner().invoke(app, ["model", "list", f"--model-repository={tmp_path}"])
    assert (listed.exit_code, "there are no models in" in listed.output) == (0, True)
    refused = CliRunner().invoke(app, ["model", "list", f"--model-repository={tmp_path / 'nowhere'}"])
    assert isinstance(refused.exception, UserError)
    assert "there is no model repository at" in str(refused.exception)
