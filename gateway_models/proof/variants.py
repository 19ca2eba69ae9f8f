"""The ways to run a network that `gateway model tune` measures."""

from dataclasses import dataclass, replace
from importlib.util import find_spec

from gateway.errors import UserError
from gateway.machine.gpus import gpu_count
from gateway_local.cpu_features import has_bf16
from gateway_local.cpu_network import CpuRuntime
from gateway_models.networks.file_kinds import ONNX
from gateway_models.networks.model_source import file_kind
from gateway_models.repository.entry import Entry
from gateway_models.repository.spec import Format, OpenVino, Precision, Serving


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to run a network."""

    format: Format
    precision: Precision
    serving: Serving

    @property
    def has_cpu_form(self) -> bool:
        """Whether it is TorchScript that ONNX Runtime runs, on a machine without a GPU."""
        return (
            self.format is Format.TORCHSCRIPT
            and self.precision is Precision.FP32
            and self.serving.cpu_runtime is not CpuRuntime.TORCHSCRIPT
            and not self.serving.gpus
            and not gpu_count()
        )

    def described(self) -> str:
        """A line for tables."""
        in_bf16 = self.serving.openvino is OpenVino.BF16
        runtime = "openvino" if self.serving.openvino else self.format.value
        if self.has_cpu_form:
            runtime = "torchscript by onnxruntime"
        return f"{runtime} {(Precision.BF16 if in_bf16 else self.precision).value}"


def variants_of(entry: Entry) -> list[Variant]:
    """The installed variants of a model's network, the present one first; raises UserError if there is no choice."""
    serving, several = entry.spec.serving, len(entry.versions) > 1
    if entry.format is Format.FUNCTION or serving.tensorrt:
        raise UserError(f"{entry.name} runs by {'TensorRT' if serving.tensorrt else entry.format.value} alone")
    fp32, bf16, fp16 = Precision.FP32, Precision.BF16, Precision.FP16

    def way(
        written_as: Format,
        precision: Precision,
        openvino: OpenVino | None = None,
        cpu_runtime: CpuRuntime | None = serving.cpu_runtime if several else None,
    ) -> Variant:
        return Variant(written_as, precision, replace(serving, openvino=openvino, cpu_runtime=cpu_runtime))

    ways = [way(Format.TORCHSCRIPT, fp32), way(Format.TORCHSCRIPT, bf16)]
    if gpu_count():
        ways += [way(Format.TORCHSCRIPT, fp16), way(Format.ONNX, fp32), way(Format.ONNX, fp16)]
    else:
        # On a CPU, TorchScript in fp32 has a form for ONNX Runtime: ONNX as the format would be as fast.
        ways += [way(Format.ONNX, fp32)] if entry.format is Format.ONNX else []
        if find_spec("openvino") is not None:
            ways += [way(Format.ONNX, fp32, openvino=OpenVino.FP32)]
            # Only probabilities are compared, and with bf16 embeddings would differ from those that users have stored.
            if has_bf16() and not entry.embedding_size:
                ways += [way(Format.ONNX, fp32, openvino=OpenVino.BF16)]
        # Versions share this setting, and only the one in use is written again.
        ways += [] if several else [way(Format.TORCHSCRIPT, fp32, cpu_runtime=CpuRuntime.TORCHSCRIPT)]
    kind = file_kind(entry.spec.source)
    if entry.embedding_size or kind is ONNX or kind.opener:
        ways = [each for each in ways if each.format is Format.ONNX]
    if several:
        # The versions share one configuration, which names one runtime.
        present = (entry.format, serving.openvino)
        ways = [each for each in ways if (each.format, each.serving.openvino) == present]
    return list(dict.fromkeys([Variant(entry.format, entry.spec.precision, serving), *ways]))
