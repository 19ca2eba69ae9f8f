"""Which model answers when a request names none."""

import shutil

import pytest

from gateway.settings import Settings
from gateway_local.default_model import NoDefaultModel, default_model
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY

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


def test_model_with_the_default_name_is_the_default(repository):
    add(repository, "ensemble_model", "flowers")
    assert default_model(repository, DEFAULT) == "ensemble_model"


def test_single_model_is_the_default_whatever_its_name(repository):
    add(repository, "flowers")
    assert default_model(repository, DEFAULT) == "flowers"


def test_ensembles_of_versions_do_not_count_as_models(repository):
    add(repository, "flowers", "flowers.v1", "flowers.v2")
    assert default_model(repository, DEFAULT) == "flowers"


def test_several_models_without_the_default_name_are_listed(repository):
    add(repository, "flowers", "birds")
    with pytest.raises(NoDefaultModel, match=r"has no model 'ensemble_model'; it has birds, flowers: .* --model NAME"):
        default_model(repository, DEFAULT)


def test_explicit_model_is_not_replaced(repository):
    add(repository, "flowers")
    with pytest.raises(NoDefaultModel, match="has no model 'flwers'; it has flowers: correct --model"):
        default_model(repository, Settings(_env_file=None, model="flwers"))


def test_repository_without_an_image_classifier_is_an_error(repository):
    with pytest.raises(NoDefaultModel, match="gateway model add"):
        default_model(repository, DEFAULT)


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
