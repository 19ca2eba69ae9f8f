"""`gateway up` on the terminal, without starting its processes."""

from pathlib import Path
from unittest.mock import MagicMock

import pytest

from gateway.plugins.keys.key_file import KeysError
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY
from gateway_models.commands.add import add_to_serve
from tests.commands import gateway, refusal
from tests.gateway_models.networks.builders import Head, save_onnx, spec_of


@pytest.mark.parametrize("command", ["up", "serve"])
def test_key_of_commands_does_not_pass_for_protection(command, monkeypatch):
    monkeypatch.setenv("GATEWAY_API_KEY", "secret")
    assert "GATEWAY_API_KEYS_FILE" in refusal(command, kind=KeysError)


def test_threads_of_a_new_model_are_timed_by_the_start_alone(tmp_path, monkeypatch):
    """They are chosen before it is loaded into a Triton that runs; without one, the start that follows does it."""
    timed = []
    monkeypatch.setattr("gateway_local.elastic.update", lambda *_: timed.append(None))
    monkeypatch.setattr("gateway_models.commands.add.reload", lambda *_, **__: None)
    repository, model = tmp_path / "models", save_onnx(Head(), tmp_path / "head.onnx")
    add_to_serve(spec_of(model, tmp_path), repository, None)
    assert not timed
    save_onnx(Head(seed=1), model)
    add_to_serve(spec_of(model, tmp_path), repository, "triton.example:8001")
    assert timed


@pytest.mark.parametrize("port", ["grpc", "http", "metrics"])
def test_number_out_of_range_is_refused(port):
    gateway("triton", "run", f"--{port}-port=99999", code=2)


def test_model_repository_of_the_settings_is_the_default_of_commands(tmp_path, monkeypatch):
    started: list[Path] = []
    monkeypatch.setattr("gateway_local.up.up", lambda settings, repository, *_, **options: started.append(repository))
    for name in ("serve.bound", "workers.start_process"):
        monkeypatch.setattr(f"gateway.server.{name}", MagicMock())
    monkeypatch.setenv("GATEWAY_MODEL_REPOSITORY", str(tmp_path))
    gateway("up")
    gateway("up", f"--model-repository={DEFAULT_MODEL_REPOSITORY}")
    assert started == [tmp_path, DEFAULT_MODEL_REPOSITORY]
