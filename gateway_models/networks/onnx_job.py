"""Probes and writes ONNX files, and writes any network as ONNX."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from gateway.triton.contract import CLASSIFIER_FEATURES, CLASSIFIER_OUTPUT
from gateway_models.networks import onnx_graph
from gateway_models.networks.adapted import Form, arranged, known_form
from gateway_models.networks.converters import open_network
from gateway_models.networks.embeddings import add_embedding, check_embeddings, inner_tensor, pair_runner
from gateway_models.networks.errors import ModelError
from gateway_models.networks.file_kinds import FileKind
from gateway_models.networks.isolation import Job
from gateway_models.networks.job_checks import activation_of, check_pixels, images_of, outcome_of, probed, report
from gateway_models.networks.onnx_runner import import_onnx, runner
from gateway_models.networks.probe import Ending, Findings
from gateway_models.repository.entry import Outcome
from gateway_models.repository.spec import Format, ImageTensor, Precision


def do_onnx(job: Job) -> Outcome:
    """Probe an ONNX file and write it with the tensors of the contract; raises UserError."""
    report(f"loading {job.spec.source}")
    return serve_onnx(job, Path(job.spec.source))


def do_framework(job: Job, kind: FileKind) -> Outcome:
    """Convert a model of another framework to ONNX, and compare the answers with the framework's own."""
    import_onnx()
    report(f"loading {job.spec.source}, {kind.content}")
    network = open_network(kind, job.spec)
    report("converting it to ONNX")
    with tempfile.TemporaryDirectory(prefix="converted-") as folder:
        file = Path(folder) / "model.onnx"
        network.write(file, job.side)
        return serve_onnx(job, file, network.run)


def serve_onnx(
    job: Job, file: Path, original: Callable[[Tensor], Tensor] | None = None, known: Form | None = None
) -> Outcome:
    """Like `do_onnx`, for an ONNX `file`, whose answers are compared with its `original`'s.

    `known` is its input format, by default the spec's.
    """
    model = onnx_graph.load_onnx(file)
    # A framework's network has chosen the output itself.
    output = "" if original else job.spec.output
    signature = onnx_graph.check_signature(model, job.side, known or known_form(job.spec), output)
    check_pixels(job, signature.form.input)
    onnx_graph.check_scale(model, job.spec)
    answers = runner(file, signature.output)

    def run(images: Tensor) -> Tensor:
        return answers(arranged(images, signature.form))

    report(f"trying it on images of {job.side}×{job.side}")
    findings = probed(job, run)
    activate = activation_of(job, findings, run)
    # From here on, the images are compared with the answers of the framework itself.
    answers = original or answers
    tensor, size = "", 0
    if job.spec.features:
        tensor = inner_tensor(model, signature.output)
        both = pair_runner(model, signature.output, tensor)

        def run_both(images: Tensor) -> tuple[Tensor, Tensor]:
            images = arranged(images, signature.form)
            scores, inner = both(images)
            return activate((original(images) if original else scores).float()), inner.float()

        size = check_embeddings(run_both, job.side, pixels=job.pixels)
        report(f"its embeddings have {size} numbers")
        expected: list[Any] = [run_both(batch) for batch in images_of(job)]
    else:
        expected = [activate(run(batch).float()) for batch in images_of(job)]
    if signature.one_by_one:
        report("it takes one image at a time; converting it to take any batch")
        model = onnx_graph.any_batch(model)
    try:
        return write_onnx(job, findings, model, findings.ending, expected, signature, tensor, size)
    except Exception as exc:  # of onnx, of ONNX Runtime, or ModelError where answers differ
        if not signature.one_by_one:
            raise
        job.file(Format.ONNX).unlink(missing_ok=True)
        raise ModelError(f"it takes a fixed batch of 1 and does not work with others: {onnx_graph.ANY_BATCH}") from exc


def write_onnx(
    job: Job,
    findings: Findings,
    model: Any,  # noqa: ANN401
    ending: Ending,
    expected: list[Any],
    signature: onnx_graph.Signature | None = None,
    embedding_tensor: str = "",
    embedding_size: int = 0,
) -> Outcome:
    """Complete an ONNX model, write it, and compare its answers with the expected ones; raises ModelError.

    Embeddings are the `embedding_tensor` of the model, if their size is not 0.
    """
    spec, path = job.spec, job.file(Format.ONNX)
    form, output = (signature.form, signature.output) if signature else (Form(), "answers")
    model = onnx_graph.finish(
        model,
        ending,
        multi_label=job.spec.multi_label,
        side=job.side,
        classes=findings.classes,
        form=form,
        output=output,
        normalise=(spec.prepared.mean, spec.prepared.std) if spec.tensor is ImageTensor.UINT8 else None,
    )
    if embedding_size:
        model = add_embedding(model, embedding_tensor, embedding_size)
    if job.spec.precision is Precision.FP16:
        report("converting to fp16")
        model = onnx_graph.to_fp16(model)
    report(f"writing {path.name}")
    onnx_graph.write(model, path)
    written: Callable[[Tensor], Any] = (
        pair_runner(path, CLASSIFIER_OUTPUT, CLASSIFIER_FEATURES) if embedding_size else runner(path)
    )
    return outcome_of(job, Format.ONNX, findings, expected, written, embedding_size, form.input)
