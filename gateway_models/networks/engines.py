"""Ready-made TensorRT engines: machine code for one kind of GPU, which nothing here can load or test."""

import shutil
from pathlib import Path

from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.isolation import Job, Report
from gateway_models.networks.model_source import SourceError
from gateway_models.repository.entry import EntryError, Outcome, Version
from gateway_models.repository.spec import Format, ImageTensor, ModelSpec, Precision

ENGINE = "engine"
"""The `kind` of model_source.Source."""
UNTESTED = (
    "a TensorRT engine cannot be loaded here, so neither its tensors nor its answers were tested. It must take batches "
    "of 1 to {largest} images {kind} [N, 3, {side}, {side}] as {input!r}, and return probabilities fp32 [N, {classes}] "
    "as {output!r}, with softmax or sigmoid in the network. Triton refuses other names, types and shapes when it loads "
    "the engine, but not other answers: check them with `gateway model evaluate`"
)


def check_engine(kind: str, spec: ModelSpec, written_as: Format) -> None:
    """Raise SourceError where the spec asks for what an engine cannot be; `kind` is the source's kind."""
    if kind != ENGINE:
        if written_as is Format.TENSORRT:
            raise SourceError(
                "the other versions are TensorRT engines: build one of this network too, with trtexec on the GPU that "
                "serves it, or add it under another name"
            )
        if spec.engine_tensors:
            raise SourceError("--engine-tensors is for TensorRT engines, model.plan; leave it out")
        return
    for option, given in (
        (f"--format {written_as.value}", written_as is not Format.TENSORRT),
        ("--precision", spec.precision is not Precision.FP32),
        ("--embeddings", bool(spec.features)),
        ("--output", bool(spec.output)),
    ):
        if given:
            raise SourceError(
                f"{option} is for networks that are converted, and a TensorRT engine is served as it is: leave it out, "
                "or add the network that it was built from, with --format onnx --tensorrt"
            )


def take(job: Job, report: Report) -> Outcome:
    """Copy an engine into the job's folder, unchanged; raises ModelFileError if it cannot be read."""
    spec = job.spec
    try:
        shutil.copyfile(Path(spec.source), job.file(Format.TENSORRT))
    except OSError as exc:
        raise ModelFileError(f"cannot copy {spec.source}: {exc}") from exc
    names = spec.engine_names
    report(
        UNTESTED.format(
            largest=spec.serving.max_batch_size,
            kind=(spec.tensor or ImageTensor.FP32).value,
            side=job.side,
            classes=job.labels,
            input=names[0],
            output=names[1],
        )
    )
    return Outcome(job.labels, "probabilities, by its maker's word", 0.0, Format.TENSORRT)


def check_original(version: Version) -> None:
    """Raise EntryError for an engine, which has no original to compare served answers with."""
    if version.outcome.format is Format.TENSORRT:
        raise EntryError(
            f"{version.spec.name} is a TensorRT engine, whose original network is not known here: compare it by "
            "`gateway model evaluate` with labelled images, or by `gateway model compare` with a model of the network "
            "that it was built from"
        )
