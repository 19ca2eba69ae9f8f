"""The configurations that Triton reads, made of an entry, and what `gateway model add` prints of it."""

import json
from dataclasses import replace

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from gateway.triton.configs import parameters
from gateway.triton.contract import (
    DECODE_PARAMETER,
    DESCRIPTION_PARAMETER,
    DRIFT_REFERENCE_PARAMETER,
    MODEL_PARAMETER,
    MULTI_LABEL_PARAMETER,
    PRECISION_PARAMETER,
    VERSION_PARAMETER,
)
from gateway.values.rollout import Rollout
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY
from gateway_models.networks.export import EFFICIENTNET_LITE0, default_entry
from gateway_models.repository.entry import Entry
from gateway_models.repository.render import TENSORRT_CACHE, render
from gateway_models.repository.spec import Format, OpenVino, Precision, Serving
from tests.gateway_models.repository.entries import entry


def config(text: str) -> ModelConfig:
    return text_format.Parse(text, ModelConfig())


def test_shipped_configurations_come_from_the_same_templates():
    for folder, text in render(default_entry(EFFICIENTNET_LITE0), command="add default").items():
        assert (DEFAULT_MODEL_REPOSITORY / folder / "config.pbtxt").read_text() == text, folder


def test_ensemble_has_parameters_for_the_gateway():
    one = entry(multi_label=True, precision=Precision.BF16).versions[1]
    texts = render(Entry("head", {1: one, 2: one}, rollout=Rollout({"2": 100})))
    written = {name: dict(parameters(config(texts[name]))) for name in ("head", "head.v1", "head.v2")}
    assert written["head"] == {
        MODEL_PARAMETER: "head",
        VERSION_PARAMETER: "2",
        PRECISION_PARAMETER: "bf16",
        MULTI_LABEL_PARAMETER: "true",
        DECODE_PARAMETER: "exact",
    }
    assert [each[VERSION_PARAMETER] for each in written.values()] == ["2", "1", "2"]
    steps = [config(texts[name]).ensemble_scheduling.step[1] for name in written]
    assert [(step.model_name, step.model_version) for step in steps] == [
        ("head_classifier", 2),
        ("head_classifier", 1),
        ("head_classifier", 2),
    ]


def test_description_and_reference_of_drift_are_parameters_of_their_version():
    """Also with characters that Triton's text format escapes."""
    one = entry(description='A "head" \\ é').versions[1]
    text = json.dumps({"class": {"0": ['a "cat"\\ é $model %s', 0.5]}})
    versions = {1: one, 2: replace(entry().versions[1], drift_reference=text)}
    texts = render(Entry("head", versions, rollout=Rollout({"2": 100})))
    for parameter, expected in (
        (DESCRIPTION_PARAMETER, {"head.v1": 'A "head" \\ é'}),
        (DRIFT_REFERENCE_PARAMETER, {"head": text, "head.v2": text}),
    ):
        written = {name: parameters(config(texts[name])).get(parameter) for name in texts}
        assert {name: given for name, given in written.items() if given} == expected


def test_numbers_that_were_not_chosen_are_not_written():
    """A count, preferred sizes or a delay that are written are a person's, and stay on every machine."""
    texts = render(entry(serving=Serving(gpus=(0, 2))))
    classifier, preprocessor = config(texts["head_classifier"]), config(texts["head_preprocessor"])
    assert [(group.count, list(group.gpus)) for group in classifier.instance_group] == [(0, [0, 2])]
    assert not list(classifier.dynamic_batching.preferred_batch_size)
    assert not classifier.dynamic_batching.max_queue_delay_microseconds
    assert [group.count for group in preprocessor.instance_group] == [0]
    small = config(render(entry(serving=Serving(max_batch_size=4)))["head_classifier"])
    assert [warmup.batch_size for warmup in small.model_warmup] == [1, 4]


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
def test_tensorrt_is_an_accelerator_of_onnx(precision):
    texts = render(entry(format=Format.ONNX, precision=precision, serving=Serving(tensorrt=True)))
    (accelerator,) = config(texts["head_classifier"]).optimization.execution_accelerators.gpu_execution_accelerator
    assert (accelerator.name, accelerator.parameters["precision_mode"]) == ("tensorrt", precision.value.upper())
    assert accelerator.parameters["trt_engine_cache_path"] == TENSORRT_CACHE
    without = config(render(entry(format=Format.ONNX))["head_classifier"])
    assert not without.optimization.HasField("execution_accelerators")


@pytest.mark.parametrize("largest", [1, 8, 64, 1024])
def test_tensorrt_engine_takes_every_batch_and_is_warmed_up(largest):
    """One engine for 1 to max_batch_size images: none is built while clients wait."""
    serving = Serving(tensorrt=True, max_batch_size=largest, preferred=tuple({1, min(8, largest)}))
    text = render(entry(format=Format.ONNX, serving=serving))["head_classifier"]
    (accelerator,) = config(text).optimization.execution_accelerators.gpu_execution_accelerator
    side = entry().spec.prepared.crop_size
    shapes = [accelerator.parameters[f"trt_profile_{which}_shapes"] for which in ("min", "opt", "max")]
    assert shapes == [f"input__0:{batch}x3x{side}x{side}" for batch in (1, min(8, largest), largest)]
    assert {1, min(8, largest), largest} <= {warmup.batch_size for warmup in config(text).model_warmup}


def test_openvino_is_an_accelerator_of_onnx_on_cpus():
    """Triton's own backend pads each batch to the largest one; ONNX Runtime's takes OpenVINO with any batch."""
    serving = Serving(openvino=OpenVino.BF16, tensorrt=True)
    texts = render(entry(format=Format.ONNX, serving=serving))
    classifier, ensemble = config(texts["head_classifier"]), config(texts["head"])
    accelerators = classifier.optimization.execution_accelerators
    (accelerator,) = accelerators.cpu_execution_accelerator
    assert (accelerator.name, accelerator.parameters["precision"]) == ("openvino", "bf16")
    assert [each.name for each in accelerators.gpu_execution_accelerator] == ["tensorrt"]
    assert classifier.platform == "onnxruntime_onnx"
    assert ensemble.parameters["precision"].string_value == "bf16"
