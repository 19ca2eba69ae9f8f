"""What one Triton serves, while some of it has failed."""

import asyncio

import pytest
from tritonclient.grpc.model_config_pb2 import DataType

from gateway.triton.catalogue import Models
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
