"""Models are found where a user would look for them; what a wheel brings is tested in test_wheel.py."""

from gateway_local.paths import DEFAULT_MODEL_REPOSITORY, default_model_repository, shipped
from tests.processes import PROJECT


def test_repository_in_the_working_directory_comes_first(tmp_path, monkeypatch):
    (tmp_path / "triton_models" / "flowers").mkdir(parents=True)
    assert default_model_repository(tmp_path) == DEFAULT_MODEL_REPOSITORY
    (tmp_path / "triton_models" / "flowers" / "config.pbtxt").touch()
    assert default_model_repository(tmp_path) == tmp_path / "triton_models"


def test_checkout_has_models_beside_the_package():
    assert shipped() == PROJECT
    assert default_model_repository(PROJECT / "tests") == PROJECT / "triton_models"
