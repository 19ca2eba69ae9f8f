"""An ONNX file, tried and written; and what writes any network as ONNX."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from gateway.triton.contract import CLASSIFIER_FEATURES, CLASSIFIER_OUTPUT
from gateway_models.networks import onnx_graph
from gateway_models.networks.adapted import Form, arranged
from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.isolation import Job, Outcome
from gateway_models.networks.job_checks import (
    VectorTensor,
    check_pixels,
    gray_of,
    images_of,
    outcome_of,
    say,
    vectors_of,
)
from gateway_models.networks.onnx_features import add_vectors, dims_of, inner_tensor, pair_runner
from gateway_models.networks.onnx_runner import runner
from gateway_models.networks.trial import (
    Ending,
    Findings,
    activation,
    check_classes,
    try_out,
)
from gateway_models.repository.entry import Precision


def do_onnx(job: Job) -> Outcome:
    """Try an ONNX file and write it with the tensors of the contract; raises UserError."""
    say(f"loading {job.source}")
    model = onnx_graph.load_onnx(Path(job.source))
    signature = onnx_graph.check_signature(model, job.side, Form(job.input, gray_of(job)), job.pick)
    check_pixels(job, signature.form.input)
    answers = runner(Path(job.source), signature.output)

    def run(images: Tensor) -> Tensor:
        return answers(arranged(images, signature.form))

    say(f"trying it on images of {job.side}×{job.side}")
    findings = try_out(run, job.side, pixels=job.pixels)
    check_classes(findings, job.labels, multi_label=job.multi_label)
    finished = activation(findings.ending, multi_label=job.multi_label)
    vectors = None
    if job.features:
        tensor = inner_tensor(model, signature.output, job.features)
        both = pair_runner(model, signature.output, tensor)

        def run_both(images: Tensor) -> tuple[Tensor, Tensor]:
            scores, inner = both(arranged(images, signature.form))
            return finished(scores.float()), inner.float()

        dims = dims_of(model, tensor, arranged(images_of(job)[0], signature.form))
        vectors = vectors_of(job, run_both, tensor, dims)
        expected: list[Any] = [run_both(batch) for batch in images_of(job)]
    else:
        expected = [finished(run(batch).float()) for batch in images_of(job)]
    if signature.one_by_one:
        return _write_any_batch(job, findings, model, signature, expected, vectors)
    return write_onnx(job, findings, model, findings.ending, expected, signature, vectors)


def _write_any_batch(
    job: Job,
    findings: Findings,
    model: Any,  # noqa: ANN401
    signature: onnx_graph.Signature,
    expected: list[Any],
    vectors: VectorTensor | None,
) -> Outcome:
    """A model for one image at a time, as one for any number: proven by its answers, or refused."""
    say("it takes one image at a time; giving it any number")
    try:
        return write_onnx(job, findings, onnx_graph.any_batch(model), findings.ending, expected, signature, vectors)
    except Exception as exc:  # of onnx, of ONNX Runtime, and ours where answers differ
        Path(job.output).unlink(missing_ok=True)
        raise ModelFileError(
            f"it takes a fixed batch of 1, and something in it is bound to that: {onnx_graph.ANY_BATCH}"
        ) from exc


def write_onnx(
    job: Job,
    findings: Findings,
    model: Any,  # noqa: ANN401
    ending: Ending,
    expected: list[Any],
    signature: onnx_graph.Signature | None = None,
    vectors: VectorTensor | None = None,
) -> Outcome:
    """Finish a model of ONNX, write it, and hold its answers to what is expected; raises ModelFileError."""
    form, output = (signature.form, signature.output) if signature else (Form(), "answers")
    model = onnx_graph.finish(
        model,
        ending,
        multi_label=job.multi_label,
        side=job.side,
        classes=findings.classes,
        form=form,
        output=output,
        normalise=job.normalise,
    )
    if vectors is not None:
        model = add_vectors(model, vectors.tensor, vectors.size, vectors.dims)
    if job.precision is Precision.FP16:
        say("converting to fp16")
        model = onnx_graph.to_fp16(model)
    say(f"writing {Path(job.output).name}")
    onnx_graph.write(model, Path(job.output))
    path = Path(job.output)
    written: Callable[[Tensor], Any] = (
        runner(path) if vectors is None else pair_runner(path, CLASSIFIER_OUTPUT, CLASSIFIER_FEATURES)
    )
    outcome = outcome_of(job, findings, expected, written, vectors)
    return replace(outcome, input="" if form.is_plain else form.input)
