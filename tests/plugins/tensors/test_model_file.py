"""The file of models that take tensors: what it says, and what is wrong in it."""

import pytest

from gateway.environment import SettingsError, load_settings
from gateway.ingest.resizing import Resize, TensorInput
from gateway.triton.codec import Codecs
from gateway_plugins.tensors.model_file import ModelFileError, read_models
from gateway_plugins.tensors.tensor_codec import TensorModel
from tests.settings import Settings

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


def test_settings_declare_the_models(tmp_path):
    settings = Settings(_env_file=None, tensor_models_file=written(tmp_path, VALID))
    codecs = Codecs.of_settings(settings)
    assert codecs.tensor_input("net").crop == (224, 224)
    assert codecs.tensor_input("others") is None
    assert Codecs.of_settings(Settings(_env_file=None)).tensor_input("net") is None
