"""Probes and writes networks that torch runs: TorchScript, torch.export, torchvision, timm, Hugging Face."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from gateway_models.networks import onnx_graph
from gateway_models.networks.adapted import Adapted, Form, Normalising, known_form
from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.isolation import Job
from gateway_models.networks.job_checks import (
    ALLOWED,
    activation_of,
    check_pixels,
    images_of,
    outcome_of,
    probe_batches_of,
    probed,
    report,
)
from gateway_models.networks.onnx_job import serve_onnx, write_onnx
from gateway_models.networks.originals import original_module
from gateway_models.networks.probe import Ending, form_of
from gateway_models.networks.torchscript import Served, export_torchscript, load_torchscript
from gateway_models.repository.entry import Outcome
from gateway_models.repository.spec import Format, ImageTensor, Precision

DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


def do_torch(job: Job) -> Outcome:
    """Probe a network that torch runs, and write it in the job's format; raises UserError."""
    spec = job.spec
    report(f"loading {spec.source}")
    with torch.no_grad():
        module = original_module(spec, job.labels)
        report(f"trying it on images of {job.side}×{job.side}")
        form = form_of(module, job.side, known_form(spec), pixels=job.pixels)
        check_pixels(job, form.input)
        given = _probe_output(module, job.side)
        if not form.is_plain or spec.output or not isinstance(given, Tensor) or given.dim() != 2:
            module = Adapted(module, form, spec.output).eval()
        findings = probed(job, module)
        activate = activation_of(job, findings, module)
        if spec.features:
            with tempfile.TemporaryDirectory(prefix="converted-") as folder:
                onnx_graph.write(onnx_graph.from_module(module, job.side), Path(folder) / "model.onnx")
                outcome = serve_onnx(job, Path(folder) / "model.onnx", module, Form(""))
                return replace(outcome, input=form.recorded)
        served: torch.nn.Module = Served(module, activate, torch.float32)
        expected = [served(batch) for batch in images_of(job)]
        if spec.format is Format.ONNX:
            model = onnx_graph.from_module(served, job.side)
            ending = Ending.SIGMOID if spec.multi_label else Ending.SOFTMAX
            return replace(write_onnx(job, findings, model, ending, expected), input=form.recorded)
        dtype = DTYPES[spec.precision]
        if dtype is not torch.float32:
            report(f"converting to {spec.precision.value}")
            try:
                served = _converted(module, activate, dtype)
                served(images_of(job)[0])
            except RuntimeError as exc:
                reason = str(exc).strip().splitlines()[-1]
                raise ModelFileError(
                    f"it does not run in {spec.precision.value}: {reason}. Keep it in fp32, or save it without "
                    "torch.jit.freeze"
                ) from exc
        if spec.tensor is ImageTensor.UINT8:
            served = Normalising(served, spec.prepared.mean, spec.prepared.std)
        file = job.file(Format.TORCHSCRIPT)
        report(f"writing {file.name}")
        export_torchscript(served, probe_batches_of(job)[1], file, tolerance=ALLOWED[spec.precision])
        written = load_torchscript(file, trust=spec.trust)
        return outcome_of(job, Format.TORCHSCRIPT, findings, expected, written, input=form.recorded)


def _probe_output(module: torch.nn.Module, side: int) -> object:
    """A module's output for a random batch; an empty tensor if it fails, which probing reports."""
    try:
        output: object = module(torch.rand((2, 3, side, side)))
    except Exception:
        return torch.empty(0)
    return output


def _converted(module: torch.nn.Module, activate: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Served:
    if isinstance(module, Adapted):
        # Its images are converted to the input format in fp32 first.
        module.network, module.dtype = module.network.to(dtype), dtype
        return Served(module, activate, torch.float32)
    return Served(module.to(dtype), activate, dtype)
