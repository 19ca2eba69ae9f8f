"""`gateway up` on the terminal, without starting its processes."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway_cli.main import app


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("GATEWAY_MODEL_SPLIT", "pets has no version 2, so its share of the requests is answered with 503"),
        ("GATEWAY_MODEL_SHADOW", "pets has no version 2, so it receives nothing"),
    ],
)
def test_split_to_a_missing_version_warns_at_start(tmp_path, monkeypatch, setting, message):
    started: list[Path] = []
    monkeypatch.setattr("gateway_local.up.up", lambda settings, repository, **options: started.append(repository))
    (tmp_path / "pets" / "1").mkdir(parents=True)
    monkeypatch.setenv(setting, "pets=2:10" if setting == "GATEWAY_MODEL_SHADOW" else "pets=1:90,2:10")
    result = CliRunner().invoke(app, ["up", f"--model-repository={tmp_path}"])
    assert f"gateway | warning: {message}" in result.output
    assert started == [tmp_path]
    (tmp_path / "pets.v2").mkdir()
    assert "warning" not in CliRunner().invoke(app, ["up", f"--model-repository={tmp_path}"]).output


def test_missing_model_file_warns_unless_it_is_the_default_model(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway_local.up.up", lambda *_, **__: None)
    for name in ("classifier", "flowers"):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text('platform: "pytorch_libtorch"')
        lacking = tmp_path / "flowers" / "1" / "model.pt"
        output = CliRunner().invoke(app, ["up", f"--model-repository={tmp_path}"]).output
        assert (f"warning: {tmp_path / 'classifier' / '1' / 'model.pt'} is missing" in output) == (name == "flowers")
        assert (f"{lacking} is missing: add the files" in output) == (name == "flowers")


@pytest.mark.parametrize("option", ["--grpc-port", "--http-port", "--metrics-port"])
def test_invalid_port_is_refused(option):
    assert CliRunner().invoke(app, ["triton", "run", f"{option}=99999"]).exit_code == 2
