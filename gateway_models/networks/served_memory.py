"""Measures the memory of a network in its serving process when it is added; the record is kept with the model."""

from dataclasses import replace

from google.protobuf import text_format
from google.protobuf.json_format import MessageToDict

from gateway.machine.capacity import IN_FLIGHT_PER_CORE, MIB, NetworkRuntime
from gateway.triton.configs import ModelConfig
from gateway.triton.footprint import MemoryRecord, runtime_of
from gateway_local.cpu_network import CpuRuntime
from gateway_local.json_child import ChildFailed, ask
from gateway_local.paths import DEFAULT_BACKENDS
from gateway_models.networks import served_process
from gateway_models.networks.isolation import TIMEOUT_SECONDS, Job, Report
from gateway_models.repository.entry import Entry, Outcome, Version
from gateway_models.repository.render import render
from gateway_models.repository.spec import Format

BACKENDS = {Format.TORCHSCRIPT: "pytorch", Format.ONNX: "onnxruntime"}


def with_memory(job: Job, outcome: Outcome, report: Report) -> Outcome:
    """The outcome of a job with the memory of a process that serves its network on a CPU.

    A network that cannot be measured, such as one for GPUs alone, has no record; then PROCESS_MEMORY applies.
    """
    entry = Entry(job.spec.name, {1: Version(job.spec, outcome)})
    config = text_format.Parse(render(entry)[entry.classifier], ModelConfig())
    backend = BACKENDS.get(outcome.format)
    given = {
        "code": str(DEFAULT_BACKENDS / backend / "model.py" if backend else job.file(outcome.format)),
        "folder": str(job.folder),
        "config": MessageToDict(config, preserving_proto_field_name=True),
        # As many as one core has in flight under load.
        "images": min(IN_FLIGHT_PER_CORE, job.spec.serving.max_batch_size),
    }
    try:
        answer = ask(served_process.__file__, given, TIMEOUT_SECONDS)
    except ChildFailed as exc:
        report(f"its memory is estimated, since it could not be measured: {exc}")
        return outcome
    runtime = NetworkRuntime.ONNX if outcome.cpu_runtime is CpuRuntime.ONNXRUNTIME else runtime_of(config)
    record = MemoryRecord(runtime, int(answer["loaded_bytes"]), int(answer["peak_bytes"]))
    report(
        f"a process takes {record.loaded_bytes / MIB:.0f} MiB once it is loaded, {record.peak_bytes / MIB:.0f} MiB "
        "under load"
    )
    return replace(outcome, memory=record)
