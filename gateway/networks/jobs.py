"""The process that `isolation` starts: a Job comes in as JSON, an Outcome or an error goes out.

python -m gateway.networks.jobs
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gateway.errors import UserError
from gateway.networks import onnx_graph
from gateway.networks.adapted import Adapted, Form, Gray, Normalising, arranged
from gateway.networks.confinement import confine
from gateway.networks.features import Featured, check_vectors, vector_difference
from gateway.networks.file_kinds import ModelFileError
from gateway.networks.functions import FUNCTION, Said
from gateway.networks.hub import HUGGING_FACE
from gateway.networks.isolation import JOB, OUTCOME, PROGRESS, TIMEOUT_SECONDS, Job, Outcome
from gateway.networks.onnx_features import add_vectors, dims_of, inner_tensor, pair_runner
from gateway.networks.originals import original_module
from gateway.networks.programs import export_program
from gateway.networks.staged import load_staged
from gateway.networks.torchscript import ExportError, Served, convert, cpu_only, export_torchscript
from gateway.networks.trial import (
    ACTIVATION_NAMES,
    Ending,
    Findings,
    activation,
    check_classes,
    form_of,
    probes,
    try_out,
)
from gateway.repository.entry import Format, Precision
from gateway.triton.contract import CLASSIFIER_FEATURES, CLASSIFIER_OUTPUT

DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}
ALLOWED = {Precision.FP32: 1e-3, Precision.FP16: 2e-2, Precision.BF16: 1e-1}
"""How far probabilities of made-up images may be from the original's: more is not rounding, but something broken."""
ALLOWED_COSINE = {Precision.FP32: 1e-5, Precision.FP16: 1e-3, Precision.BF16: 1e-2}
"""And how far from 1 the cosine of a vector and the original's."""


@dataclass(frozen=True, slots=True)
class VectorTensor:
    """Vectors of `size` numbers, and the tensor of an ONNX graph, of 2 or 4 `dims`, that they come from."""

    size: int
    tensor: str
    dims: int


def do(job: Job) -> Outcome:
    """Try a network and write it; raises UserError."""
    return {"onnx": _do_onnx, "function": _do_function}.get(job.kind, _do_torch)(job)


def _do_torch(job: Job) -> Outcome:
    _say(f"loading {job.source}")
    with torch.no_grad():
        module = original_module(job.source, job.weights, job.labels)
        _say(f"trying it on images of {job.side}×{job.side}")
        form = form_of(module, job.side, Form(job.input, _gray(job)), pixels=job.pixels)
        _check_pixels(job, form.input)
        if not form.is_plain or job.pick or not isinstance(_tried(module, job.side), Tensor):
            module = Adapted(module, form, job.pick).eval()
        findings = try_out(module, job.side, pixels=job.pixels)
        check_classes(findings, job.labels, multi_label=job.multi_label)
        finished = activation(findings.ending, multi_label=job.multi_label)
        if job.features:
            network = module.network if isinstance(module, Adapted) else module
            module = Featured(network, form, job.pick, job.features, findings.classes).eval()
        vectors = _vectors(job, module)
        served: torch.nn.Module = Served(module, finished, torch.float32)
        expected = [served(batch) for batch in _images(job)]
        if job.format is Format.ONNX:
            model = onnx_graph.from_module(served, job.side, vectors=vectors is not None)
            ending = Ending.SIGMOID if job.multi_label else Ending.SOFTMAX
            outcome = _write_onnx(job, findings, model, ending, expected, vectors=vectors)
            return replace(outcome, input="" if form.is_plain else form.input)
        dtype = DTYPES[job.precision]
        if dtype is not torch.float32:
            _say(f"converting to {job.precision.value}")
            try:
                served = _converted(module, finished, dtype)
                served(_images(job)[0])
            except RuntimeError as exc:
                reason = str(exc).strip().splitlines()[-1]
                raise ModelFileError(f"it does not run in {job.precision.value}: {reason}. Leave it in fp32") from exc
        _say(f"writing {Path(job.output).name}")
        output = Path(job.output)
        if job.normalise:
            served = Normalising(served, *job.normalise)
        example = _probes(job)[1]
        written_as = _write_torch(job, served, example)
        output = output.with_name(written_as.filename)
        job = replace(job, format=written_as, output=str(output))
        written = original_module(str(output), "", None)
        outcome = replace(_outcome(job, findings, expected, written, vectors), format=written_as)
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
        _say(f"TorchScript would not be the same ({reason}); it stays a program of torch.export")
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


def _gray(job: Job) -> Gray | None:
    return Gray(*job.gray) if job.gray else None


def _do_onnx(job: Job) -> Outcome:
    _say(f"loading {job.source}")
    model = onnx_graph.load_onnx(Path(job.source))
    signature = onnx_graph.check_signature(model, job.side, Form(job.input, _gray(job)), job.pick)
    _check_pixels(job, signature.form.input)
    answers = onnx_graph.runner(Path(job.source), signature.output)

    def run(images: Tensor) -> Tensor:
        return answers(arranged(images, signature.form))

    _say(f"trying it on images of {job.side}×{job.side}")
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

        dims = dims_of(model, tensor, arranged(_images(job)[0], signature.form))
        vectors = _vectors(job, run_both, tensor, dims)
        expected: list[Any] = [run_both(batch) for batch in _images(job)]
    else:
        expected = [finished(run(batch).float()) for batch in _images(job)]
    if signature.one_by_one:
        return _write_any_batch(job, findings, model, signature, expected, vectors)
    return _write_onnx(job, findings, model, findings.ending, expected, signature, vectors)


def _write_any_batch(
    job: Job,
    findings: Findings,
    model: Any,  # noqa: ANN401
    signature: onnx_graph.Signature,
    expected: list[Any],
    vectors: VectorTensor | None,
) -> Outcome:
    """A model for one image at a time, as one for any number: proven by its answers, or refused."""
    _say("it takes one image at a time; giving it any number")
    try:
        return _write_onnx(job, findings, onnx_graph.any_batch(model), findings.ending, expected, signature, vectors)
    except Exception as exc:  # of onnx, of ONNX Runtime, and ours where answers differ
        Path(job.output).unlink(missing_ok=True)
        raise ModelFileError(
            f"it takes a fixed batch of 1, and something in it is bound to that: {onnx_graph.ANY_BATCH}"
        ) from exc


def _do_function(job: Job) -> Outcome:
    """The function lies in its folder already, where it is tried as Triton will run it."""
    folder = Path(job.output).parent
    said = Said(**json.loads((folder / FUNCTION).read_text()))
    _say(f"importing {said.module}.py and calling load() where it has one")
    function, adapter = load_staged(folder)
    _check_pixels(job, function.input)

    def run(images: Tensor) -> Tensor:
        try:
            scores: Tensor = function.scores(images)
        except adapter.FunctionError as exc:
            raise ModelFileError(str(exc)) from exc
        except (Exception, SystemExit) as exc:
            for line in traceback.format_exc().splitlines():
                _say(line)
            _, _, order = function.input.partition("-")
            shape = [len(images), 3, job.side, job.side] if order == "nchw" else [len(images), job.side, job.side, 3]
            raise ModelFileError(
                f"on a batch of made-up images, {function.input.partition('-')[0]} {shape}, it failed with "
                f"{adapter.described(exc)}"
            ) from exc
        return scores

    _say(f"trying it on images of {job.side}×{job.side} as {function.input}")
    findings = try_out(run, job.side, pixels=job.pixels)
    check_classes(findings, job.labels, multi_label=job.multi_label)
    finished = activation(findings.ending, multi_label=job.multi_label)
    replace(said, input=function.input, activation=ACTIVATION_NAMES[finished]).write(folder)
    written, _ = load_staged(folder)
    outcome = _outcome(job, findings, [finished(run(batch)) for batch in _probes(job)], written.probabilities)
    return replace(outcome, input=function.input)


def _check_pixels(job: Job, wanted: str) -> None:
    """Raise ModelFileError where what it takes and how the images are said to be prepared contradict each other."""
    if wanted.startswith("uint8") and not job.pixels:
        raise ModelFileError(
            "it takes pixels as uint8, and so normalises them itself: leave out --mean and --std, or with --like or "
            "--preprocessing say --pixels, by which their mean and std are left out"
        )
    if wanted.startswith("float32") and job.pixels_implied:
        raise ModelFileError(
            "it takes float32: say --mean and --std, as in training, or --pixels where it wants values of 0 to 255"
        )


def _write_onnx(
    job: Job,
    findings: Findings,
    model: Any,  # noqa: ANN401
    ending: Ending,
    expected: list[Any],
    signature: onnx_graph.Signature | None = None,
    vectors: VectorTensor | None = None,
) -> Outcome:
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
        _say("converting to fp16")
        model = onnx_graph.to_fp16(model)
    _say(f"writing {Path(job.output).name}")
    onnx_graph.write(model, Path(job.output))
    path = Path(job.output)
    written: Callable[[Tensor], Any] = (
        onnx_graph.runner(path) if vectors is None else pair_runner(path, CLASSIFIER_OUTPUT, CLASSIFIER_FEATURES)
    )
    outcome = _outcome(job, findings, expected, written, vectors)
    return replace(outcome, input="" if form.is_plain else form.input)


def _vectors(
    job: Job, run: Callable[[Tensor], Any], tensor: str = onnx_graph.VECTORS, dims: int = 2
) -> VectorTensor | None:
    """What is known of the vectors that a network gives beside its scores; None where it is to give none."""
    if not job.features:
        return None
    size = check_vectors(run, job.side, pixels=job.pixels)
    _say(f"its vectors have {size} numbers")
    return VectorTensor(size, tensor, dims)


def _outcome(
    job: Job,
    findings: Findings,
    expected: list[Any],
    written: Callable[[Tensor], Any],
    vectors: VectorTensor | None = None,
) -> Outcome:
    """What was written, held to what was expected of it: scores, or pairs of scores and vectors."""
    answers = [written(batch) for batch in _probes(job)]
    off = 0.0
    if vectors is not None:
        off = vector_difference([answer[1] for answer in answers], [wanted[1] for wanted in expected])
        answers, expected = [answer[0] for answer in answers], [wanted[0] for wanted in expected]
        if not off <= ALLOWED_COSINE[job.precision]:
            Path(job.output).unlink(missing_ok=True)
            raise ModelFileError(
                f"in {job.precision.value} as {job.format.value} its vectors differ from the original's, by a cosine "
                f"of {1 - off:.6f}: leave it in fp32, or in its own format"
            )
    difference = max(float((answer - wanted).abs().max()) for answer, wanted in zip(answers, expected, strict=True))
    if not difference <= ALLOWED[job.precision]:
        Path(job.output).unlink(missing_ok=True)
        raise ModelFileError(
            f"in {job.precision.value} as {job.format.value} its probabilities differ from the original's by up to "
            f"{difference:.2g}: leave it in fp32, or in its own format"
        )
    size = 0 if vectors is None else vectors.size
    return Outcome(findings.classes, findings.ending.value, difference, features=size, features_difference=off)


def _probes(job: Job) -> list[Tensor]:
    """What the served network is tried with."""
    if job.normalise:
        return [batch.to(torch.uint8) for batch in probes(job.side, pixels=True)]
    return probes(job.side, pixels=job.pixels)


def _images(job: Job) -> list[Tensor]:
    """The same as the original takes them."""
    if job.normalise:
        front = Normalising(torch.nn.Identity(), *job.normalise)
        return [front(batch) for batch in _probes(job)]
    return _probes(job)


def _say(text: str) -> None:
    sys.stderr.write(f"{PROGRESS}{text}\n")
    sys.stderr.flush()


def _confine(job: Job) -> None:
    if job.kind == "function":
        # Trusted code, that may map more than it takes; what is left is for accidents.
        confine(job.mapped_bytes, cpu_seconds=TIMEOUT_SECONDS * (os.cpu_count() or 2), address_space=False)
        return
    sources = [path for path in (Path(job.source), Path(job.weights)) if path.is_file()]
    if job.source.startswith(HUGGING_FACE):
        sources = list(Path(job.source.removeprefix(HUGGING_FACE)).glob("*.safetensors"))
    # The wall clock is the parent's; this is for a process that the parent could not kill.
    confine(sum(path.stat().st_size for path in sources), cpu_seconds=TIMEOUT_SECONDS * max(2, torch.get_num_threads()))


def main() -> None:
    """Read a Job from stdin, write one line of JSON to stdout."""
    # Libraries print what they like; only the answer may go to the parent.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # Half the cores: with all of them torch crawls as soon as something else, a server say, wants one.
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
    try:
        job = JOB.validate_json(sys.stdin.buffer.read())
        _confine(job)
        answer = OUTCOME.dump_python(do(job), mode="json")
    except UserError as exc:
        answer = {"error": str(exc)}
    except MemoryError:
        answer = {"error": "it takes more memory than a network of its size should: is the file damaged?"}
    except Exception as exc:  # the parent reports it as a sentence; the traceback is on stderr
        traceback.print_exc()
        answer = {"error": f"{type(exc).__name__}: {exc}"}
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
