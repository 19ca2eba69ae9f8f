"""What an ensemble may lack of the contract, and what is said of it."""

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from gateway.errors import ContractBroken
from gateway.triton.codec import Codecs
from gateway.triton.contract import ImageTensors, breaches, image_tensors

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
        ((IMAGE, LENGTH, SCORES, STATUS), ImageTensors()),
        ((IMAGE, LENGTH, SCORES), ImageTensors(status=False)),
        ((IMAGE, SCORES, STATUS), ImageTensors(lengths=False, padded=False, sealed=False)),
        ((IMAGE, SCORES, STATUS, PADDED), ImageTensors(lengths=False, sealed=False)),
        ((IMAGE, SCORES, STATUS, CACHED), ImageTensors(lengths=False, padded=False)),
        (
            (IMAGE, OTHER, FEATURES),
            ImageTensors("output__0", lengths=False, status=False, padded=False, sealed=False),
        ),
    ],
)
def test_tensors_of_an_ensemble(parts, tensors):
    assert breaches(config(*parts)) == []
    assert image_tensors(config(*parts)) == tensors


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
    assert lengths.startswith("flowers/config.pbtxt: no input RAW_IMAGE_LENGTH: images of different length")
    assert status.startswith("flowers/config.pbtxt: no output IMAGE_STATUS")
    (lengths, _) = Codecs().of(config(IMAGE, SCORES, PADDED)).limitations(LABELLED)
    assert lengths.endswith("only the gateway notices a file without its end")
