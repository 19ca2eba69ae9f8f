"""What runs a network, by the configuration that Triton returns."""

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from gateway.triton.runtimes import network_runtime

OWN, CPU, GPU = (
    'backend: "pytorch" runtime: "model.py"',
    "instance_group { kind: KIND_CPU }",
    "instance_group { kind: KIND_GPU }",
)
OPENVINO = 'optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" } } }'
ONNXRUNTIME = {"cpu_runtime": "onnxruntime"}


@pytest.mark.parametrize(
    ("text", "ensemble", "runtime"),
    [
        (f"{OWN} {CPU}", ONNXRUNTIME, "onnxruntime"),
        (f"{OWN} {CPU}", {"cpu_runtime": "torchscript"}, "torchscript"),
        (f"{OWN} {CPU}", {}, "torchscript"),  # added by an earlier release
        (f"{OWN} {GPU}", ONNXRUNTIME, "torchscript"),
        (f"{OWN} {CPU} {GPU}", ONNXRUNTIME, "torchscript"),
        (f'{OWN} {CPU} default_model_filename: "model.pt2"', {}, "torch-export"),
        (f'backend: "pytorch" runtime: "libtriton_pytorch.so" {CPU}', ONNXRUNTIME, "libtorch"),
        (f'backend: "onnxruntime" {CPU}', {}, "onnxruntime"),
        (f'backend: "onnxruntime" {CPU} {OPENVINO}', {}, "openvino"),
        (f'backend: "onnxruntime" {GPU} {OPENVINO}', {}, "onnxruntime"),
        ('backend: "tensorrt"', {}, "tensorrt"),
        ("", {}, None),
    ],
)
def test_runtime_follows_backend_device_and_record(text, ensemble, runtime):
    assert network_runtime(text_format.Parse(text, ModelConfig()), ensemble) == runtime
