"""Where models are, and which one answers when a request names none."""

import shutil

import pytest

from gateway.settings import Settings
from gateway_local.default_model import NoDefaultModel, default_model
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY, default_model_repository, shipped
from tests.processes import PROJECT

DEFAULT = Settings(_env_file=None)
ENSEMBLE = (DEFAULT_MODEL_REPOSITORY / "ensemble_model" / "config.pbtxt").read_text()


@pytest.fixture
def repository(tmp_path):
    for step in ("preprocessor", "classifier"):
        (tmp_path / step).mkdir()
        shutil.copy(DEFAULT_MODEL_REPOSITORY / step / "config.pbtxt", tmp_path / step)
    return tmp_path


def add(repository, *names):
    for name in names:
        (repository / name).mkdir()
        (repository / name / "config.pbtxt").write_text(ENSEMBLE.replace('"ensemble_model"', f'"{name}"'))


@pytest.mark.parametrize(
    ("names", "model"),
    [
        (["ensemble_model", "flowers"], "ensemble_model"),
        (["flowers"], "flowers"),
        (["flowers", "flowers.v1", "flowers.v2"], "flowers"),  # the ensembles of versions are no models
    ],
)
def test_default_model_has_the_default_name_or_is_the_only_one(repository, names, model):
    add(repository, *names)
    assert default_model(repository, DEFAULT) == model


@pytest.mark.parametrize(
    ("names", "settings", "words"),
    [
        (["flowers", "birds"], {}, r"has no model 'ensemble_model'; it has birds, flowers: .* --model NAME"),
        (["flowers"], {"model": "flwers"}, "has no model 'flwers'; it has flowers: correct --model"),
        ([], {}, "gateway model add"),
    ],
)
def test_repository_without_a_default_model_is_an_error(repository, names, settings, words):
    add(repository, *names)
    with pytest.raises(NoDefaultModel, match=words):
        default_model(repository, Settings(_env_file=None, **settings))


def test_unreadable_repository_is_left_to_triton(tmp_path):
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.pbtxt").write_text("{")
    assert default_model(tmp_path, DEFAULT) == "ensemble_model"


@pytest.mark.parametrize("settings", [DEFAULT, Settings(_env_file=None, model="ensemble_model")])
def test_missing_or_empty_repository_is_refused_before_the_start(tmp_path, settings):
    with pytest.raises(NoDefaultModel, match=r"no model repository at .*nowhere: --model-repository names"):
        default_model(tmp_path / "nowhere", settings)
    with pytest.raises(NoDefaultModel, match=r"there are no models in .* `gateway model add … --model-repository"):
        default_model(tmp_path, settings)


def test_repository_in_the_working_directory_comes_first(tmp_path, monkeypatch):
    (tmp_path / "triton_models" / "flowers").mkdir(parents=True)
    assert default_model_repository(tmp_path) == DEFAULT_MODEL_REPOSITORY
    (tmp_path / "triton_models" / "flowers" / "config.pbtxt").touch()
    assert default_model_repository(tmp_path) == tmp_path / "triton_models"


def test_checkout_has_models_beside_the_package():
    assert shipped() == PROJECT
    assert default_model_repository(PROJECT / "tests") == PROJECT / "triton_models"
