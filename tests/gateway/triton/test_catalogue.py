"""What one Triton serves, while some of it has failed."""

import asyncio
from types import SimpleNamespace

import pytest
from tritonclient.grpc.model_config_pb2 import DataType

from gateway.deadline import Deadline
from gateway.errors import LoadFailed, ModelNotFound, NoFeatures
from gateway.inference.backend import Batch, Call, Vectors
from gateway.inference.selection import Selection
from gateway.triton.catalogue import Models
from gateway.triton.contract import SEQUENCE_MODEL
from gateway.triton.fake_endpoint import FakeEndpoint, FakeTriton


@pytest.fixture
def triton():
    return FakeTriton({"good": ("preprocessor", "net"), "bad": ("preprocessor", "broken")}, failing={"broken"})


def test_a_model_that_failed_does_not_take_the_list_with_it(triton):
    bad, good = asyncio.run(Models(FakeEndpoint("10.0.0.1:8001", triton)).all())
    assert (good.name, good.ready, good.labels) == ("good", True, ("cat", "dog"))
    assert (bad.name, bad.ready, bad.labels) == ("bad", False, ())
    assert bad.reason
    assert (bad.classes, bad.versions, bad.steps) == (2, ("1",), ("preprocessor", "broken"))


@pytest.mark.parametrize(("asked", "meant"), [("goood", "good"), ("zzz", None), ("good", None), ("brokn", None)])
def test_a_name_that_is_not_there_is_like_a_model_that_is_and_never_like_a_step(triton, asked, meant):
    assert asyncio.run(Models(FakeEndpoint("10.0.0.1:8001", triton)).near(asked)) == meant


@pytest.mark.parametrize(
    ("data_type", "tensor"),
    [(DataType.TYPE_FP32, "fp32"), (DataType.TYPE_UINT8, "uint8"), (DataType.TYPE_FP16, None)],
)
def test_a_model_tells_what_its_network_gets(data_type, tensor):
    models = Models(FakeEndpoint("10.0.0.1:8001", FakeTriton({"good": ("preprocessor", "net")}, image_type=data_type)))
    (good,) = asyncio.run(models.all())
    assert (good.tensor, good.input_height, good.input_width) == (tensor, 224, 224)


@pytest.mark.parametrize(
    ("size", "wanted", "given"),
    [(3, Vectors.NEEDED, 3), (3, Vectors.IF_ANY, 3), (3, Vectors.NONE, None), (0, Vectors.IF_ANY, None)],
)
def test_vectors_are_asked_for_where_they_are_wanted_and_there_are_some(size, wanted, given):
    models = Models(FakeEndpoint("10.0.0.1:8001", FakeTriton(vector_size=size)))
    (row,) = asyncio.run(models.infer(call(wanted))).rows
    assert (None if row.vector is None else len(row.vector)) == given
    (info,) = asyncio.run(models.all())
    assert info.vector_size == size


def test_a_model_without_vectors_names_the_command_and_is_not_suspected():
    seen = []
    evidence = SimpleNamespace(suspect=lambda *told: seen.append(told), answered=lambda *told: seen.append(told))
    models = Models(FakeEndpoint("10.0.0.1:8001", FakeTriton()), evidence)
    with pytest.raises(NoFeatures, match="gateway model add … --features auto"):
        asyncio.run(models.infer(call(Vectors.NEEDED)))
    assert seen == []


def test_what_is_known_of_a_version_is_read_of_the_ensemble_that_answers_for_it():
    models = Models(FakeEndpoint("10.0.0.1:8001", FakeTriton({"good.v2": ("preprocessor", "net")})))
    assert asyncio.run(models.labels("good", "2")) == ("cat", "dog")
    assert asyncio.run(models.sequence_model("good", "2")) == SEQUENCE_MODEL
    for read in (models.labels, models.resize, models.sequence_model):
        with pytest.raises(ModelNotFound):
            asyncio.run(read("good", "3"))


def test_a_model_is_loaded_with_its_versions_and_unloaded_with_the_steps_that_no_other_needs():
    ensembles = {"good": ("shared", "net"), "good.v2": ("shared", "net:2"), "other": ("shared", "its own")}
    triton = FakeTriton(ensembles)
    models = Models(FakeEndpoint("10.0.0.1:8001", triton))
    asyncio.run(models.load("good"))
    assert set(triton.done) == {("load", "good"), ("load", "good.v2")}
    triton.done.clear()
    assert asyncio.run(models.unload("good")) == {"good", "good.v2"}
    assert set(triton.done) == {("unload", "good"), ("unload", "good.v2"), ("unload", "net")}


def test_what_triton_refuses_to_load_is_said_with_its_reason():
    models = Models(FakeEndpoint("10.0.0.1:8001", FakeTriton(refuses_to_load={"ensemble_model"})))
    with pytest.raises(
        LoadFailed, match=r"Triton cannot load 'ensemble_model': load failed for model 'ensemble_model': no memory"
    ):
        asyncio.run(models.load("ensemble_model"))
    with pytest.raises(ModelNotFound, match=r"no model 'nothing' in Triton's repository"):
        asyncio.run(models.load("nothing"))


def call(vectors: Vectors) -> Call:
    return Call(Batch([b"image"]), "ensemble_model", "", Selection(), Deadline.after(5), "an id", vectors=vectors)
