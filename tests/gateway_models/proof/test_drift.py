"""The reference of `gateway model drift`: a folder of images, and its form in the model."""

import pytest

from gateway.triton.contract import DRIFT_REFERENCE_PARAMETER, parameters, read_model_config
from gateway.values.rollout import Rollout
from gateway_models.networks.export import EFFICIENTNET_LITE0, default_entry
from gateway_models.predictions.drift import sample_of
from gateway_models.predictions.live_drift import STORED_IMAGES, read_reference
from gateway_models.predictions.store import LogUnavailable
from gateway_models.proof.dataset import Sample
from gateway_models.proof.drift import chosen_samples, described, store
from gateway_models.proof.evaluate import predict_each
from gateway_models.proof.image_files import NotCompared
from gateway_models.repository.entry import read_entry
from gateway_models.repository.manage import use
from gateway_models.repository.writing import rewrite
from tests.commands import gateway

NAME = "ensemble_model"


@pytest.fixture
def repository(tmp_path):
    """The default model without its network."""
    rewrite(default_entry(EFFICIENTNET_LITE0), tmp_path / "models")
    return tmp_path / "models"


def cats(count: int):
    """Answers of a model that sees cats only."""
    return sample_of([{"score": 0.9, "entropy": 0.2, "class": "0"}] * count, {"0": "cat"})


def test_folder_is_sampled_always_alike(tmp_path):
    for number in range(30):
        (tmp_path / f"{number}.jpg").touch()
    assert len(chosen_samples(tmp_path, most=30)) == 30
    chosen = chosen_samples(tmp_path, most=10)
    assert len(set(chosen)) == 10
    assert chosen == chosen_samples(tmp_path, most=10)


def test_reference_of_enough_images_is_stored_with_the_version(repository):
    before = (repository / NAME / "config.pbtxt").read_text()
    with pytest.raises(LogUnavailable, match="at least"):
        store(read_entry(repository, NAME), 1, cats(STORED_IMAGES - 1), repository)
    assert (repository / NAME / "config.pbtxt").read_text() == before
    store(read_entry(repository, NAME), 1, cats(STORED_IMAGES), repository)
    written = parameters(read_model_config(repository / NAME / "config.pbtxt"))[DRIFT_REFERENCE_PARAMETER]
    assert read_reference(written).classes[0][0] == "cat"
    # It is part of the record, so that a later change of the model keeps it.
    assert read_entry(repository, NAME).versions[1].drift_reference == written
    use(repository, NAME, Rollout.of(["1"]))
    assert parameters(read_model_config(repository / NAME / "config.pbtxt"))[DRIFT_REFERENCE_PARAMETER] == written


def test_command_stores_a_reference_from_the_log(repository, tmp_path):
    """Without a window: the log may be new."""
    from tests.gateway_models.predictions.test_drift import NOW, images, write_rows

    write_rows(tmp_path / "log", images(STORED_IMAGES), NOW, model=NAME)
    (tmp_path / "log" / "rows" / "model=m").rename(tmp_path / "log" / "rows" / f"model={NAME}")
    options = ("--reference", 7, "--store", "--log", tmp_path / "log", "--model-repository", repository)
    gateway("model", "drift", NAME, *options)
    stored = read_reference(read_entry(repository, NAME).versions[1].drift_reference)
    assert {label for label, _ in stored.classes.values()} == {"cat", "dog"}


def test_folder_has_the_properties_of_the_log(light_triton, photos, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no image")
    files = [photos / "cat.jpg", tmp_path / "broken.png", photos / "coffee.jpg"]
    samples = [Sample(path, frozenset()) for path in files]
    cat, broken, coffee = described(predict_each((NAME,), light_triton.url, samples), multi_label=False)
    assert isinstance(broken, NotCompared)
    assert (cat["class"], cat["format"], cat["score"], cat["entropy"]) == ("285", "JPEG", 1.0, 0.0)
    assert (cat["pixels"], coffee["pixels"]) == (451 * 300, 600 * 400)
