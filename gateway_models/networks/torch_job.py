"""A network that torch runs, tried and written: TorchScript, torch.export, torchvision, timm, Hugging Face."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from gateway_models.networks import onnx_graph
from gateway_models.networks.adapted import Adapted, Form, Normalising
from gateway_models.networks.features import Featured
from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.isolation import Job, Outcome
from gateway_models.networks.job_checks import (
    ALLOWED,
    check_pixels,
    gray_of,
    images_of,
    outcome_of,
    probes_of,
    say,
    vectors_of,
)
from gateway_models.networks.onnx_job import write_onnx
from gateway_models.networks.originals import original_module
from gateway_models.networks.programs import export_program
from gateway_models.networks.torchscript import ExportError, Served, convert, cpu_only, export_torchscript
from gateway_models.networks.trial import (
    Ending,
    activation,
    check_classes,
    form_of,
    try_out,
)
from gateway_models.repository.entry import Format, Precision

DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


GIVE_LOGITS = frozenset({"torchvision", "timm", "huggingface"})
"""Sources whose classifiers end in logits, however few of the numbers that they gave were below 0 or above 1."""


def do_torch(job: Job) -> Outcome:
    """Try a network that torch runs, and write it in the format that the job says; raises UserError."""
    say(f"loading {job.source}")
    with torch.no_grad():
        module = original_module(job.source, job.weights, job.labels, trust=job.trust)
        say(f"trying it on images of {job.side}×{job.side}")
        form = form_of(module, job.side, Form(job.input, gray_of(job)), pixels=job.pixels)
        check_pixels(job, form.input)
        if not form.is_plain or job.pick or not isinstance(_tried(module, job.side), Tensor):
            module = Adapted(module, form, job.pick).eval()
        findings = try_out(module, job.side, pixels=job.pixels)
        if job.kind in GIVE_LOGITS and findings.ending is Ending.SIGMOID:
            findings = replace(findings, ending=Ending.LOGITS)  # small ones, as of a network that is not trained
        check_classes(findings, job.labels, multi_label=job.multi_label)
        finished = activation(findings.ending, multi_label=job.multi_label)
        if job.features:
            network = module.network if isinstance(module, Adapted) else module
            module = Featured(network, form, job.pick, job.features, findings.classes).eval()
        vectors = vectors_of(job, module)
        served: torch.nn.Module = Served(module, finished, torch.float32)
        expected = [served(batch) for batch in images_of(job)]
        if job.format is Format.ONNX:
            model = onnx_graph.from_module(served, job.side, vectors=vectors is not None)
            ending = Ending.SIGMOID if job.multi_label else Ending.SOFTMAX
            outcome = write_onnx(job, findings, model, ending, expected, vectors=vectors)
            return replace(outcome, input="" if form.is_plain else form.input)
        dtype = DTYPES[job.precision]
        if dtype is not torch.float32:
            say(f"converting to {job.precision.value}")
            try:
                served = _converted(module, finished, dtype)
                served(images_of(job)[0])
            except RuntimeError as exc:
                reason = str(exc).strip().splitlines()[-1]
                raise ModelFileError(f"it does not run in {job.precision.value}: {reason}. Leave it in fp32") from exc
        say(f"writing {Path(job.output).name}")
        output = Path(job.output)
        if job.normalise:
            served = Normalising(served, *job.normalise)
        example = probes_of(job)[1]
        written_as = _write_torch(job, served, example)
        output = output.with_name(written_as.filename)
        job = replace(job, format=written_as, output=str(output))
        written = original_module(str(output), "", None)
        outcome = replace(outcome_of(job, findings, expected, written, vectors), format=written_as)
        outcome = replace(outcome, input="" if form.is_plain else form.input)
        return replace(outcome, cpu_only=cpu_only(written)) if isinstance(written, torch.jit.ScriptModule) else outcome


def _write_torch(job: Job, served: torch.nn.Module, example: Tensor) -> Format:
    """Write a module as the job says, or as a program where it may be one and TorchScript would answer otherwise."""
    output, tolerance = Path(job.output), ALLOWED[job.precision]
    if job.format is Format.EXPORTED:
        export_program(served, example, output, tolerance=tolerance)
        return Format.EXPORTED
    try:
        export_torchscript(served, example, output, tolerance=tolerance)
    except (ExportError, RuntimeError) as exc:
        if not job.may_export:
            raise
        reason = str(exc).strip().splitlines()[-1]
        say(f"TorchScript would not be the same ({reason}); it stays a program of torch.export")
        export_program(served, example, output.with_name(Format.EXPORTED.filename), tolerance=tolerance)
        return Format.EXPORTED
    return Format.TORCHSCRIPT


def _tried(module: torch.nn.Module, side: int) -> object:
    """What a module gives, where it runs."""
    try:
        return module(torch.rand((2, 3, side, side)))
    except Exception:  # the trial says why
        return torch.empty(0)


def _converted(module: torch.nn.Module, finished: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Served:
    if isinstance(module, Adapted):
        # Its images are arranged in fp32 first.
        module.network, module.dtype = convert(module.network, dtype), dtype
        return Served(module, finished, torch.float32)
    return Served(convert(module, dtype), finished, dtype)
