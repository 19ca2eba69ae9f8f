"""Chooses the runtime of a TorchScript network on a CPU: ONNX Runtime, if the network as ONNX has the same answers."""

from dataclasses import replace
from pathlib import Path

import torch
from pydantic import TypeAdapter
from torch import Tensor

from gateway.errors import UserError
from gateway_local import cpu_network
from gateway_local.cpu_network import CpuNetwork, CpuRuntime
from gateway_models.networks import onnx_graph
from gateway_models.networks.errors import ModelError
from gateway_models.networks.isolation import Job, Report, Task, WorkFailed, work
from gateway_models.networks.job_checks import ALLOWED
from gateway_models.networks.job_checks import report as report_to_parent
from gateway_models.networks.onnx_runner import session_of
from gateway_models.networks.photographs import as_tensors
from gateway_models.networks.probe import probe_batches
from gateway_models.networks.torchscript import load_torchscript
from gateway_models.repository.entry import Outcome
from gateway_models.repository.preprocessing import Preprocessing
from gateway_models.repository.spec import Format, ImageTensor, Precision

ALONE = 3
"""Images that are also compared in batches of one."""
ROUNDING = 1e-6
"""Classes whose probabilities differ by less have the same rank."""


def with_cpu_form(job: Job, outcome: Outcome, report: Report) -> Outcome:
    """Write cpu.json and maybe cpu.onnx next to the TorchScript of a job; other formats have neither.

    Raises ModelError if the spec asks for ONNX Runtime and it cannot run the network with the same answers.
    """
    if outcome.format is not Format.TORCHSCRIPT:
        return outcome
    wanted = job.spec.serving.cpu_runtime
    found = _chosen(job, report)
    if wanted is CpuRuntime.ONNXRUNTIME and found.runtime is not wanted:
        raise ModelError(f"--cpu-runtime onnxruntime is not possible: {found.reason}. Leave it out")
    cpu_network.write(found, job.file(Format.TORCHSCRIPT))
    report(f"on a CPU it runs by {found.runtime.described}: {found.reason}")
    return replace(outcome, cpu_runtime=found.runtime)


def _chosen(job: Job, report: Report) -> CpuNetwork:
    spec = job.spec
    if spec.serving.cpu_runtime is CpuRuntime.TORCHSCRIPT:
        return CpuNetwork(CpuRuntime.TORCHSCRIPT, "--cpu-runtime or `gateway model tune` has chosen it")
    if spec.precision is not Precision.FP32:
        return CpuNetwork(CpuRuntime.TORCHSCRIPT, f"it computes in {spec.precision.value}, and ONNX Runtime in fp32")
    if spec.serving.gpus:
        return CpuNetwork(CpuRuntime.TORCHSCRIPT, "it is served on GPUs alone")
    try:
        return work(replace(job, task=Task.CPU_FORM), report, TypeAdapter(CpuNetwork))
    except (ModelError, WorkFailed) as exc:
        return CpuNetwork(CpuRuntime.TORCHSCRIPT, str(exc))


def do_cpu_form(job: Job) -> CpuNetwork:
    """Convert the model.pt in a job's folder."""
    report_to_parent("converting it for ONNX Runtime, which runs it on a CPU")
    return convert(job.file(Format.TORCHSCRIPT), job.spec.prepared, job.spec.tensor or ImageTensor.FP32)


def convert(model: Path, prepared: Preprocessing, tensor: ImageTensor) -> CpuNetwork:
    """Write cpu.onnx next to a model.pt in fp32 and compare both, on photographs and on made-up images.

    The result names TorchScript if it cannot be converted or the answers differ: then the file is not used.
    """
    threads = torch.get_num_threads()
    # With more, torch slows down severely on a machine that is busy.
    torch.set_num_threads(1)
    try:
        return _converted(model, model.with_name(cpu_network.NETWORK), prepared, tensor)
    except UserError as exc:
        return CpuNetwork(CpuRuntime.TORCHSCRIPT, str(exc).strip().rstrip("."))
    finally:
        torch.set_num_threads(threads)


def _converted(model: Path, path: Path, prepared: Preprocessing, tensor: ImageTensor) -> CpuNetwork:
    original, side = load_torchscript(model), prepared.crop_size
    views = as_tensors(prepared, tensor)
    graph = onnx_graph.from_module(original, side, example=views[:2], advice="")
    onnx_graph.write(graph, path)
    run = session_of(path, None)
    made_up = probe_batches(side, pixels=prepared.gives_pixels or tensor is ImageTensor.UINT8)
    batches = [views, *torch.split(views[:ALONE], 1), *(batch.to(views.dtype) for batch in made_up)]
    found = CpuNetwork(CpuRuntime.ONNXRUNTIME, "", photographs=len(views))
    for number, batch in enumerate(batches):
        with torch.inference_mode():
            expected = original(batch)
        (answers,) = run(batch)
        difference = float((answers - expected).abs().max())
        if not difference <= ALLOWED[Precision.FP32]:
            return _unlike(f"its probabilities would differ by up to {difference:.2g}")
        found = replace(found, difference=max(found.difference, difference))
        if number == 0 and not _same_top1(answers, expected):
            return _unlike("a photograph would have another top-1 class")
    reason = (
        f"as by TorchScript, {found.photographs} views of photographs have the same top-1 class, and probabilities "
        f"differ by up to {found.difference:.1e}"
    )
    return replace(found, reason=reason)


def _unlike(why: str) -> CpuNetwork:
    return CpuNetwork(CpuRuntime.TORCHSCRIPT, f"by ONNX Runtime {why}")


def _same_top1(answers: Tensor, expected: Tensor) -> bool:
    """Whether each row has the same best class, or one that is as good up to rounding."""
    best = answers.argmax(dim=1, keepdim=True)
    return bool((expected.gather(1, best)[:, 0] >= expected.amax(dim=1) - ROUNDING).all())
