"""Chooses what runs a TorchScript network on a CPU when it is added, and records the choice beside it."""

from dataclasses import replace

from gateway_local.cpu_network import CpuNetwork, CpuRuntime, write
from gateway_models.networks.isolation import Job, Report, convert_for_cpu
from gateway_models.networks.model_source import SourceError
from gateway_models.repository.entry import Outcome
from gateway_models.repository.spec import Format, Precision


def with_cpu_form(job: Job, outcome: Outcome, report: Report, *, timeout_seconds: float) -> Outcome:
    """Write cpu.json and maybe cpu.onnx beside the TorchScript that a job has written; other formats have neither.

    Raises SourceError if the spec asks for ONNX Runtime and it cannot run the network with the same answers.
    """
    if outcome.format is not Format.TORCHSCRIPT:
        return outcome
    wanted = job.spec.serving.cpu_runtime
    found = _chosen(job, report, timeout_seconds)
    if wanted is CpuRuntime.ONNXRUNTIME and found.runtime is not wanted:
        raise SourceError(f"--cpu-runtime onnxruntime is not possible: {found.reason}. Leave it out")
    write(found, job.file(Format.TORCHSCRIPT))
    report(f"on a CPU it runs by {found.runtime.described}: {found.reason}")
    return replace(outcome, cpu_runtime=found.runtime)


def _chosen(job: Job, report: Report, timeout_seconds: float) -> CpuNetwork:
    spec = job.spec
    if spec.serving.cpu_runtime is CpuRuntime.TORCHSCRIPT:
        return CpuNetwork(CpuRuntime.TORCHSCRIPT, "--cpu-runtime or `gateway model tune` has chosen it")
    if spec.precision is not Precision.FP32:
        return CpuNetwork(CpuRuntime.TORCHSCRIPT, f"it computes in {spec.precision.value}, and ONNX Runtime in fp32")
    if spec.serving.gpus:
        return CpuNetwork(CpuRuntime.TORCHSCRIPT, "it is served on GPUs alone")
    return convert_for_cpu(job, report, timeout_seconds=timeout_seconds)
