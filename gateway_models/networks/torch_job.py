"""Probes and writes networks that torch runs: TorchScript, torch.export, torchvision, timm, Hugging Face."""

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
    embedding_of,
    gray_of,
    images_of,
    outcome_of,
    probe_batches_of,
    report,
)
from gateway_models.networks.onnx_job import write_onnx
from gateway_models.networks.originals import original_module
from gateway_models.networks.probe import (
    Ending,
    activation,
    check_classes,
    form_of,
    probe_network,
)
from gateway_models.networks.programs import export_program
from gateway_models.networks.torchscript import ExportError, Served, convert, cpu_only, export_torchscript
from gateway_models.repository.entry import Format, Precision

DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


GIVE_LOGITS = frozenset({"torchvision", "timm", "huggingface"})
"""Sources whose classifiers end in logits, even if all probe outputs lie between 0 and 1."""


def do_torch(job: Job) -> Outcome:
    """Probe a network that torch runs, and write it in the job's format; raises UserError."""
    report(f"loading {job.source}")
    with torch.no_grad():
        module = original_module(job.source, job.weights, job.labels, trust=job.trust)
        report(f"trying it on images of {job.side}×{job.side}")
        form = form_of(module, job.side, Form(job.input, gray_of(job)), pixels=job.pixels)
        check_pixels(job, form.input)
        if not form.is_plain or job.pick or not isinstance(_probe_output(module, job.side), Tensor):
            module = Adapted(module, form, job.pick).eval()
        findings = probe_network(module, job.side, pixels=job.pixels)
        if job.kind in GIVE_LOGITS and findings.ending is Ending.SIGMOID:
            findings = replace(findings, ending=Ending.LOGITS)  # small ones, as from an untrained network
        check_classes(findings, job.labels, multi_label=job.multi_label)
        activate = activation(findings.ending, multi_label=job.multi_label)
        if job.features:
            network = module.network if isinstance(module, Adapted) else module
            module = Featured(network, form, job.pick, job.features, findings.classes).eval()
        embeddings = embedding_of(job, module)
        served: torch.nn.Module = Served(module, activate, torch.float32)
        expected = [served(batch) for batch in images_of(job)]
        if job.format is Format.ONNX:
            model = onnx_graph.from_module(served, job.side, embeddings=embeddings is not None)
            ending = Ending.SIGMOID if job.multi_label else Ending.SOFTMAX
            outcome = write_onnx(job, findings, model, ending, expected, embeddings=embeddings)
            return replace(outcome, input="" if form.is_plain else form.input)
        dtype = DTYPES[job.precision]
        if dtype is not torch.float32:
            report(f"converting to {job.precision.value}")
            try:
                served = _converted(module, activate, dtype)
                served(images_of(job)[0])
            except RuntimeError as exc:
                reason = str(exc).strip().splitlines()[-1]
                raise ModelFileError(f"it does not run in {job.precision.value}: {reason}. Keep it in fp32") from exc
        report(f"writing {Path(job.output).name}")
        output = Path(job.output)
        if job.normalise:
            served = Normalising(served, *job.normalise)
        example = probe_batches_of(job)[1]
        written_as = _write_torch(job, served, example)
        output = output.with_name(written_as.filename)
        job = replace(job, format=written_as, output=str(output))
        written = original_module(str(output), "", None)
        outcome = replace(outcome_of(job, findings, expected, written, embeddings), format=written_as)
        outcome = replace(outcome, input="" if form.is_plain else form.input)
        return replace(outcome, cpu_only=cpu_only(written)) if isinstance(written, torch.jit.ScriptModule) else outcome


def _write_torch(job: Job, served: torch.nn.Module, example: Tensor) -> Format:
    """Write a module in the job's format, or as a program if that is allowed and TorchScript gives other answers."""
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
        report(f"TorchScript would give other answers ({reason}); it stays a torch.export program")
        export_program(served, example, output.with_name(Format.EXPORTED.filename), tolerance=tolerance)
        return Format.EXPORTED
    return Format.TORCHSCRIPT


def _probe_output(module: torch.nn.Module, side: int) -> object:
    """A module's output for a random batch; an empty tensor if it fails."""
    try:
        return module(torch.rand((2, 3, side, side)))
    except Exception:  # probing reports the reason
        return torch.empty(0)


def _converted(module: torch.nn.Module, activate: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Served:
    if isinstance(module, Adapted):
        # Its images are converted to the input format in fp32 first.
        module.network, module.dtype = convert(module.network, dtype), dtype
        return Served(module, activate, torch.float32)
    return Served(convert(module, dtype), activate, dtype)
