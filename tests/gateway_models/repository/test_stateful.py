"""Stateful models for streams: the shipped one is written if it is missing, others are held to what they must keep."""

import shutil

import pytest

from gateway.triton.contract import SEQUENCE_MODEL
from gateway.triton.model_config import parameters, read_model_config
from gateway_models.repository.entry import Entry, EntryError
from gateway_models.repository.manage import provide_stateful
from gateway_models.repository.render import render
from gateway_models.repository.spec import Serving
from tests.gateway_models.repository.entries import entry
from tests.processes import PROJECT


def test_shipped_stateful_model_is_written_once(tmp_path):
    assert provide_stateful(SEQUENCE_MODEL, tmp_path)
    config = tmp_path / SEQUENCE_MODEL / "config.pbtxt"
    assert (tmp_path / SEQUENCE_MODEL / "1" / "model.py").exists()
    config.write_text(config.read_text().replace("max_candidate_sequences: 1024", "max_candidate_sequences: 7"))
    assert not provide_stateful(SEQUENCE_MODEL, tmp_path)
    assert "max_candidate_sequences: 7" in config.read_text()


def test_own_stateful_model_is_used(tmp_path):
    shutil.copytree(PROJECT / "examples" / "object_counter", tmp_path / "object_counter")
    assert not provide_stateful("object_counter", tmp_path)


@pytest.mark.parametrize("name", ["missing", "../etc", "stateless"])
def test_model_that_cannot_follow_streams_is_refused(tmp_path, name):
    (tmp_path / "stateless").mkdir()
    (tmp_path / "stateless" / "config.pbtxt").write_text('name: "stateless"\nbackend: "python"\n')
    with pytest.raises(EntryError):
        provide_stateful(name, tmp_path)


def test_model_names_its_own_stateful_one_in_every_ensemble(tmp_path):
    version = entry(serving=Serving(sequence_model="object_counter")).versions[1]
    several = Entry("flowers", {1: version, 2: version})
    for ensemble in several.ensembles:
        (tmp_path / "config.pbtxt").write_text(render(several)[ensemble])
        assert parameters(read_model_config(tmp_path / "config.pbtxt"))["sequence_model"] == "object_counter"
