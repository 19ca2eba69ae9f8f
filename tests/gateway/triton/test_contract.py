"""Ensembles that lack parts of the contract: the warnings about them, and how calls are sent to them."""

from collections.abc import Sequence

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelDynamicBatching, ModelQueuePolicy

from gateway.errors import ContractBroken, InferenceFailed
from gateway.inference.result import Row
from gateway.triton.client import StubDied
from gateway.triton.codecs import Codecs, breaches
from gateway.triton.configs import has_queue_policy
from gateway.triton.health.state import ExpectedModels, HealthState
from gateway.triton.replica import Replica
from gateway.triton.wire import CONTRACT, ImageCodec
from tests.doubles.triton import KILLER, UNDECODABLE, FakeEndpoint, FakeTriton
from tests.gateway.triton.fleet import MODEL, SCHEDULE, call_of

IMAGE = 'input { name: "RAW_IMAGE" data_type: TYPE_UINT8 dims: -1 }'
LENGTH = 'input { name: "RAW_IMAGE_LENGTH" data_type: TYPE_INT32 dims: 1 }'
SCORES = 'output { name: "PREDICTION" data_type: TYPE_FP32 dims: 5 }'
OTHER = 'output { name: "output__0" data_type: TYPE_FP32 dims: 5 }'
STATUS = 'output { name: "IMAGE_STATUS" data_type: TYPE_INT32 dims: 1 }'
FEATURES = 'output { name: "FEATURES" data_type: TYPE_FP32 dims: 64 }'
CACHED = "response_cache { enable: true }"
PADDED = 'parameters { key: "padding" value { string_value: "zeros" } }'
LABELLED = ModelConfig(name="net")
LABELLED.output.add(name="output__0", label_filename="labels.txt")


def config(*parts: str) -> ModelConfig:
    text = " ".join(('name: "flowers" max_batch_size: 8', *parts))
    return text_format.Parse(text, ModelConfig())


@pytest.mark.parametrize(
    ("parts", "tensors"),
    [
        ((IMAGE, LENGTH, SCORES, STATUS), ("PREDICTION", 8, True, True, True)),
        ((IMAGE, LENGTH, SCORES), ("PREDICTION", 8, True, False, True)),
        ((IMAGE, SCORES, STATUS), ("PREDICTION", 1, False, True, False)),
        ((IMAGE, SCORES, STATUS, PADDED), ("PREDICTION", 8, False, True, False)),
        ((IMAGE, SCORES, STATUS, CACHED), ("PREDICTION", 1, False, True, True)),
        ((IMAGE, OTHER, FEATURES), ("output__0", 1, False, False, False)),
    ],
)
def test_codec_follows_the_tensors_of_an_ensemble(parts, tensors):
    codec = Codecs().of(config(*parts))
    assert isinstance(codec, ImageCodec)
    found = codec.prediction, codec.most_images, codec.has_lengths, codec.reports_images, codec.is_signed
    assert found == tensors


@pytest.mark.parametrize(
    ("parts", "fault"),
    [
        ((LENGTH, SCORES), "input 'RAW_IMAGE' is missing"),
        ((IMAGE, STATUS), "output 'PREDICTION' is missing"),
        ((IMAGE, OTHER, OTHER.replace("0", "1", 1)), "output 'PREDICTION' is missing"),
        ((IMAGE, SCORES, OTHER), "output 'output__0' is not part of the contract"),
        ((IMAGE, IMAGE.replace("RAW_IMAGE", "SIZE"), SCORES), "input 'SIZE' is not part of the contract"),
        ((IMAGE.replace("UINT8", "STRING"), SCORES), "input 'RAW_IMAGE' has data_type TYPE_STRING, not TYPE_UINT8"),
    ],
)
def test_breach_is_named(parts, fault):
    broken = config(*parts)
    assert fault in breaches(broken)
    with pytest.raises(ContractBroken, match=r"flowers/config\.pbtxt: "):
        Codecs().of(broken)


def test_limitations_name_the_file():
    complete = Codecs().of(config(IMAGE, LENGTH, SCORES, STATUS))
    assert complete.limitations(LABELLED) == ()
    (labels,) = complete.limitations(ModelConfig(name="net"))
    assert labels.startswith("net/config.pbtxt: output has no label_filename")
    lengths, status = Codecs().of(config(IMAGE, SCORES)).limitations(LABELLED)
    assert lengths.startswith("flowers/config.pbtxt: no input RAW_IMAGE_LENGTH: images do not share a call")
    assert status.startswith("flowers/config.pbtxt: no output IMAGE_STATUS")
    (lengths, _) = Codecs().of(config(IMAGE, SCORES, PADDED)).limitations(LABELLED)
    assert lengths.endswith("only the gateway notices a file without its end")


@pytest.mark.parametrize(
    "options",
    [
        {"default_queue_policy": ModelQueuePolicy(max_queue_size=1)},
        {"default_queue_policy": ModelQueuePolicy(default_timeout_microseconds=1)},
        {"default_queue_policy": ModelQueuePolicy(allow_timeout_override=True)},
        {"priority_levels": 2, "default_priority_level": 1},
    ],
)
def test_bound_timeout_override_and_priorities_are_queue_policies(options):
    assert has_queue_policy(ModelConfig(dynamic_batching=ModelDynamicBatching(**options)))


PROBE_BYTES = len(CONTRACT.probe())
GOOD, BAD = b"x" * len(UNDECODABLE), len(UNDECODABLE)


@pytest.fixture
def triton() -> FakeTriton:
    """An ensemble with RAW_IMAGE and PREDICTION alone: images share no call, and are sent again after a failure."""
    return FakeTriton(minimal=True)


async def infer(triton: FakeTriton, *images: bytes) -> Sequence[Row]:
    health = HealthState("10.0.0.1:8001", ExpectedModels(MODEL), SCHEDULE)
    return await Replica(FakeEndpoint("10.0.0.1:8001", triton), health, None).infer(call_of(*images))


@pytest.mark.parametrize(
    ("images", "minimal", "decoded", "calls"),
    [
        ([b"12345", b"123456"], True, [True] * 2, [[5], [6]]),
        ([b"12345"] * 20, False, [True] * 20, [[5] * 8, [5] * 8, [5] * 4]),  # no more images than the model takes
        # Its first call may have run together with the image of another client.
        ([UNDECODABLE], True, [False], [[BAD], [PROBE_BYTES], [BAD]]),
        ([GOOD, UNDECODABLE], False, [True, False], [[BAD] * 2]),
    ],
    ids=["lengths", "many", "undecodable", "reported"],
)
async def test_images_are_sent_in_parts(triton, images, minimal, decoded, calls):
    triton.minimal = minimal
    rows = await infer(triton, *images)
    assert [row.error is None for row in rows] == decoded
    assert [list(map(len, each.images)) for each in triton.calls] == calls


async def test_failing_model_is_no_fault_of_its_images(triton):
    triton.failing = {"net"}
    with pytest.raises(InferenceFailed):
        await infer(triton, b"12345")
    assert [list(map(len, each.images)) for each in triton.calls] == [[5], [PROBE_BYTES]]


async def test_crash_is_reported_as_one(triton):
    with pytest.raises(StubDied):
        await infer(triton, KILLER)
