"""Probes and writes networks that torch runs: TorchScript, torch.export, torchvision, timm, Hugging Face."""

import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from gateway_models.networks import onnx_graph
from gateway_models.networks.adapted import Adapted, Form, Normalising, known_form
from gateway_models.networks.errors import ModelError
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
from gateway_models.networks.probe import Ending
from gateway_models.networks.torchscript import Served, export_torchscript, load_torchscript
from gateway_models.repository.entry import Outcome
from gateway_models.repository.spec import PLAIN, Format, ImageTensor, Precision

DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


def do_torch(job: Job) -> Outcome:
    """Probe a network that torch runs, and write it in the job's format; raises UserError."""
    spec = job.spec
    report(f"loading {spec.source}")
    with torch.no_grad():
        original = original_module(spec, job.labels)
        report(f"trying it on images of {job.side}×{job.side}")
        form = known_form(replace(spec, input=spec.input or PLAIN))
        check_pixels(job, form.input)
        module = Adapted(original, form, spec.output).eval()
        findings = probed(job, module)
        activate = activation_of(job, findings, module)
        if spec.features:
            with tempfile.TemporaryDirectory(prefix="converted-") as folder:
                onnx_graph.write(onnx_graph.from_module(module, job.side), Path(folder) / "model.onnx")
                outcome = serve_onnx(job, Path(folder) / "model.onnx", module, Form(""))
                return replace(outcome, input=form.input)
        served: torch.nn.Module = Served(module, activate)
        expected = [served(batch) for batch in images_of(job)]
        if spec.format is Format.ONNX:
            model = onnx_graph.from_module(served, job.side)
            ending = Ending.SIGMOID if spec.multi_label else Ending.SOFTMAX
            return replace(write_onnx(job, findings, model, ending, expected), input=form.input)
        dtype = DTYPES[spec.precision]
        if dtype is not torch.float32:
            report(f"converting to {spec.precision.value}")
            try:
                # Its images are converted to the input format in fp32 first.
                module.network, module.dtype = module.network.to(dtype), dtype
                served(images_of(job)[0])
            except RuntimeError as exc:
                reason = str(exc).strip().splitlines()[-1]
                raise ModelError(
                    f"it does not run in {spec.precision.value}: {reason}. Keep it in fp32, or save it without "
                    "torch.jit.freeze"
                ) from exc
        if spec.tensor is ImageTensor.UINT8:
            served = Normalising(served, spec.prepared.mean, spec.prepared.std)
        file = job.file(Format.TORCHSCRIPT)
        report(f"writing {file.name}")
        export_torchscript(served, probe_batches_of(job)[1], file, tolerance=ALLOWED[spec.precision])
        written = load_torchscript(file, trust=spec.trust)
        return outcome_of(job, Format.TORCHSCRIPT, findings, expected, written, input=form.input)
