"""The variants of serving a model that `gateway model tune` measures."""

import os
from dataclasses import dataclass, replace
from enum import StrEnum

from gateway.gpus import gpu_count
from gateway.ingest.resizing import PILLOW, TORCH
from gateway_models.networks.onnx_runner import OnnxMissing, import_onnx
from gateway_models.repository.entry import Entry
from gateway_models.repository.spec import Decode, Format, Precision, Serving


class TuneStep(StrEnum):
    """The properties that `tune` varies, one after another."""

    FORMATS = "formats"
    INT8 = "int8"
    INSTANCES = "instances"
    BATCHES = "batches"
    DECODE = "decode"
    RESIZE = "resize"


USUAL = (TuneStep.FORMATS, TuneStep.INSTANCES, TuneStep.BATCHES)
"""The default steps, which change no pixels; the others must be requested."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to serve a model."""

    format: Format
    precision: Precision
    serving: Serving
    resize_library: str = PILLOW

    def described(self) -> str:
        """A line for tables."""
        preferred = ",".join(map(str, self.serving.preferred)) or "none"
        return (
            f"{self.format.value} {self.precision.value}, instances {self.serving.instances}, "
            f"preprocessors {self.serving.preprocessor_instances}, preferred {preferred}"
            f"{', decoded fast' if self.serving.decode is Decode.FAST else ''}"
            f"{'' if self.resize_library == PILLOW else f', resized by {self.resize_library}'}"
        )


def variants_of(step: TuneStep, base: Variant, entry: Entry) -> list[Variant]:
    """The variants of one step, beside `base`, the best of the steps before."""
    if step is TuneStep.FORMATS:
        return _formats(base, entry)
    if step is TuneStep.INT8:
        return [replace(base, format=Format.ONNX, precision=each) for each in (Precision.FP32, Precision.INT8)]
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
    precisions = [Precision.FP32, Precision.BF16, *([Precision.FP16] if gpu_count() else [])]
    pairs = [(base.format, base.precision), *((Format.TORCHSCRIPT, precision) for precision in precisions)]
    if _has_onnx():
        pairs += [(Format.ONNX, precision) for precision in precisions if precision is not Precision.BF16]
    if entry.spec.source.endswith(".onnx"):
        pairs = [pair for pair in pairs if pair[0] is Format.ONNX]
    if len(entry.versions) > 1:
        # The versions share one configuration, which names one format.
        pairs = [pair for pair in pairs if pair[0] is entry.format]
    return [replace(base, format=each, precision=precision) for each, precision in dict.fromkeys(pairs)]


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


def _has_onnx() -> bool:
    try:
        import_onnx()
    except OnnxMissing:
        return False
    return True
