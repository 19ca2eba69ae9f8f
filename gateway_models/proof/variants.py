"""The variants of serving a model that `gateway model tune` measures."""

import os
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib.util import find_spec

from gateway.ingest.resizing import PILLOW, TORCH
from gateway_local.cpu_features import has_bf16
from gateway_local.cpu_network import CpuRuntime
from gateway_machine.gpus import gpu_count
from gateway_models.networks.model_source import framework_of
from gateway_models.repository.entry import Entry
from gateway_models.repository.spec import Decode, Format, OpenVino, Precision, Serving
from gateway_plugins.shared.extras import install


class TuneStep(StrEnum):
    """The properties that `tune` varies, one after another."""

    FORMATS = "formats"
    INSTANCES = "instances"
    BATCHES = "batches"
    DECODE = "decode"
    RESIZE = "resize"


class NetworkRuntime(StrEnum):
    """The program or library that runs a network. OpenVINO runs ONNX; TensorRT runs ONNX, or an engine of its own."""

    TORCHSCRIPT = Format.TORCHSCRIPT.value
    ONNX = Format.ONNX.value
    OPENVINO = "openvino"
    FUNCTION = Format.FUNCTION.value
    TENSORRT = Format.TENSORRT.value


PACKAGES = {NetworkRuntime.ONNX: ("onnx", "onnxruntime"), NetworkRuntime.OPENVINO: ("onnx", "onnxruntime", "openvino")}
"""What a runtime needs beside the installed packages, to write a network and to run it."""

USUAL = (TuneStep.FORMATS, TuneStep.INSTANCES, TuneStep.BATCHES)
"""The default steps, which change no pixels; the others must be requested."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to serve a model."""

    format: Format
    precision: Precision
    serving: Serving
    resize_library: str = PILLOW

    @property
    def runtime(self) -> NetworkRuntime:
        """What runs the network."""
        if self.serving.openvino:
            return NetworkRuntime.OPENVINO
        if self.serving.tensorrt:
            return NetworkRuntime.TENSORRT
        return NetworkRuntime.ONNX if self.has_cpu_form else NetworkRuntime(self.format.value)

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

    def missing(self) -> str:
        """How to install what this variant needs; empty if nothing is missing."""
        if self.serving.tensorrt:
            return "needs the ONNX Runtime backend of NVIDIA's image: the Triton of this command has no TensorRT"
        lacking = [package for package in PACKAGES.get(self.runtime, ()) if find_spec(package) is None]
        if not lacking:
            return ""
        return f"needs {' and '.join(lacking)}: {install(self.runtime.value)}"

    def described(self) -> str:
        """A line for tables."""
        in_bf16 = self.serving.openvino is OpenVino.BF16 and self.precision is Precision.FP32
        precision = Precision.BF16 if in_bf16 else self.precision
        runtime = "torchscript by onnxruntime" if self.has_cpu_form else self.runtime.value
        sizes = self.serving.preferred
        chosen = {
            "instances": self.serving.instances,
            "preprocessors": self.serving.preprocessor_instances,
            "preferred": None if sizes is None else ",".join(map(str, sizes)) or "none",
        }
        given = ", ".join(f"{what} {value}" for what, value in chosen.items() if value is not None)
        return (
            f"{runtime} {precision.value}, {given or 'sized to the machine'}"
            f"{', decoded fast' if self.serving.decode is Decode.FAST else ''}"
            f"{'' if self.resize_library == PILLOW else f', resized by {self.resize_library}'}"
        )


def variants_of(step: TuneStep, base: Variant, entry: Entry) -> list[Variant]:
    """The variants of one step, beside `base`, the best of the steps before."""
    if step is TuneStep.FORMATS:
        return _formats(base, entry)
    others = {
        TuneStep.INSTANCES: _instances,
        TuneStep.BATCHES: _batches,
        TuneStep.DECODE: _decodings,
        TuneStep.RESIZE: _libraries,
    }
    return others[step](base)


def _formats(base: Variant, entry: Entry) -> list[Variant]:
    if base.format in {Format.FUNCTION, Format.TENSORRT}:
        return []  # the format of a function or an engine cannot be changed
    gpus = gpu_count()
    torch = [Precision.FP32, Precision.BF16, *([Precision.FP16] if gpus else [])]
    ways: list[tuple[Format, Precision, OpenVino | None]] = [
        (base.format, base.precision, base.serving.openvino),
        *((Format.TORCHSCRIPT, precision, None) for precision in torch),
        # On a CPU, TorchScript in fp32 has a form for ONNX Runtime: ONNX as the format would be as fast.
        *(
            (Format.ONNX, precision, None)
            for precision in torch
            if precision is not Precision.BF16 and (gpus or base.format is Format.ONNX)
        ),
        # On a GPU, ONNX Runtime runs ONNX in any case.
        *((Format.ONNX, Precision.FP32, computes_in) for computes_in in ([] if gpus else _openvino(entry))),
    ]
    by_tensorrt = (False, True) if gpus else (base.serving.tensorrt,)
    if entry.spec.source.endswith(".onnx") or framework_of(entry.spec.source):
        ways = [way for way in ways if way[0] is Format.ONNX]
    if len(entry.versions) > 1:
        # The versions share one configuration, which names one runtime.
        ways = [way for way in ways if (way[0], way[2]) == (entry.format, entry.serving.openvino)]
        by_tensorrt = (entry.serving.tensorrt,)
    found: list[Variant] = []
    for each, precision, computes_in in dict.fromkeys(ways):
        if each is Format.ONNX:
            onnx = _in_onnx(base, precision, computes_in)
            found += [replace(onnx, serving=replace(onnx.serving, tensorrt=tensorrt)) for tensorrt in by_tensorrt]
        else:
            serving = replace(base.serving, openvino=None, tensorrt=False)
            found.append(replace(base, format=each, precision=precision, serving=serving))
    if len(entry.versions) == 1:
        # Versions share this setting, and only the one in use is written again.
        found += [
            replace(each, serving=replace(each.serving, cpu_runtime=runtime))
            for each in found
            if each.format is Format.TORCHSCRIPT and each.precision is Precision.FP32 and not gpus
            for runtime in (None, CpuRuntime.TORCHSCRIPT)
        ]
    return list(dict.fromkeys(found))


def _in_onnx(base: Variant, precision: Precision, computes_in: OpenVino | None) -> Variant:
    serving = replace(base.serving, openvino=computes_in, cpu_runtime=None)
    return replace(base, format=Format.ONNX, precision=precision, serving=serving)


def _openvino(entry: Entry) -> list[OpenVino]:
    # Only probabilities are compared, and bf16 would make embeddings differ from those that users have stored.
    bf16 = has_bf16() and not entry.embedding_size and find_spec("openvino") is not None
    return [OpenVino.FP32, *([OpenVino.BF16] if bf16 else [])]


def _instances(base: Variant) -> list[Variant]:
    counts = sorted({1, 2, os.cpu_count() or 1} | ({4} if gpu_count() else set()))
    return [
        replace(base, serving=replace(base.serving, instances=instances, preprocessor_instances=preprocessors))
        for instances in counts
        for preprocessors in counts
    ]


def _batches(base: Variant) -> list[Variant]:
    sizes: list[tuple[int, ...]] = [(), (4, 8), (8, 16), (8, 16, 32)]
    fit = [size for size in sizes if all(each <= base.serving.max_batch_size for each in size)]
    return [replace(base, serving=replace(base.serving, preferred=preferred)) for preferred in fit]


def _decodings(base: Variant) -> list[Variant]:
    return [replace(base, serving=replace(base.serving, decode=decode)) for decode in Decode]


def _libraries(base: Variant) -> list[Variant]:
    return [replace(base, resize_library=library) for library in (PILLOW, TORCH)]
