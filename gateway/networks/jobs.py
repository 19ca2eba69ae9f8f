"""The process that `isolation` starts: a Job comes in as JSON, an Outcome or an error goes out.

python -m gateway.networks.jobs
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gateway.errors import UserError
from gateway.networks import onnx_graph
from gateway.networks.confinement import confine
from gateway.networks.files import ModelFileError
from gateway.networks.functions import FUNCTION, Said
from gateway.networks.isolation import JOB, OUTCOME, PROGRESS, TIMEOUT_SECONDS, Job, Outcome
from gateway.networks.originals import original_module
from gateway.networks.staged import load_staged
from gateway.networks.torchscript import Served, convert, cpu_only, export_torchscript
from gateway.networks.trial import (
    ACTIVATION_NAMES,
    Ending,
    Findings,
    activation,
    check_classes,
    probes,
    try_out,
)
from gateway.repository.entry import Format, Precision

DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}
ALLOWED = {Precision.FP32: 1e-3, Precision.FP16: 2e-2, Precision.BF16: 1e-1}
"""How far probabilities of made-up images may be from the original's: more is not rounding, but something broken."""


def do(job: Job) -> Outcome:
    """Try a network and write it; raises UserError."""
    return {"onnx": _do_onnx, "function": _do_function}.get(job.kind, _do_torch)(job)


def _do_torch(job: Job) -> Outcome:
    _say(f"loading {job.source}")
    with torch.no_grad():
        module = original_module(job.source, job.weights, job.labels)
        _say(f"trying it on images of {job.side}×{job.side}")
        findings = try_out(module, job.side, pixels=job.pixels)
        check_classes(findings, job.labels, multi_label=job.multi_label)
        finished = activation(findings.ending, multi_label=job.multi_label)
        expected = [finished(module(batch).float()) for batch in _probes(job)]
        served = Served(module, finished, torch.float32)
        if job.format is Format.ONNX:
            model = onnx_graph.from_module(served, job.side)
            return _write_onnx(job, findings, model, Ending.SIGMOID if job.multi_label else Ending.SOFTMAX, expected)
        dtype = DTYPES[job.precision]
        if dtype is not torch.float32:
            _say(f"converting to {job.precision.value}")
            try:
                served = Served(convert(module, dtype), finished, dtype)
                served(_probes(job)[0])
            except RuntimeError as exc:
                reason = str(exc).strip().splitlines()[-1]
                raise ModelFileError(f"it does not run in {job.precision.value}: {reason}. Leave it in fp32") from exc
        _say(f"writing {Path(job.output).name}")
        output = Path(job.output)
        example = _probes(job)[1]
        export_torchscript(served, example, output, tolerance=ALLOWED[job.precision])
        written = original_module(str(output), "", None)
        outcome = _outcome(job, findings, expected, written)
        return replace(outcome, cpu_only=cpu_only(written)) if isinstance(written, torch.jit.ScriptModule) else outcome


def _do_onnx(job: Job) -> Outcome:
    _say(f"loading {job.source}")
    model = onnx_graph.load_onnx(Path(job.source))
    onnx_graph.check_signature(model, job.side)
    run = onnx_graph.runner(Path(job.source))
    _say(f"trying it on images of {job.side}×{job.side}")
    findings = try_out(run, job.side, pixels=job.pixels)
    check_classes(findings, job.labels, multi_label=job.multi_label)
    finished = activation(findings.ending, multi_label=job.multi_label)
    expected = [finished(run(batch).float()) for batch in _probes(job)]
    return _write_onnx(job, findings, model, findings.ending, expected)


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


def _write_onnx(job: Job, findings: Findings, model: Any, ending: Ending, expected: list[Tensor]) -> Outcome:  # noqa: ANN401
    model = onnx_graph.finish(model, ending, multi_label=job.multi_label, side=job.side, classes=findings.classes)
    if job.precision is Precision.FP16:
        _say("converting to fp16")
        model = onnx_graph.to_fp16(model)
    _say(f"writing {Path(job.output).name}")
    onnx_graph.write(model, Path(job.output))
    return _outcome(job, findings, expected, onnx_graph.runner(Path(job.output)))


def _outcome(job: Job, findings: Findings, expected: list[Tensor], written: Callable[[Tensor], Tensor]) -> Outcome:
    answers = [written(batch) for batch in _probes(job)]
    difference = max(float((answer - wanted).abs().max()) for answer, wanted in zip(answers, expected, strict=True))
    if not difference <= ALLOWED[job.precision]:
        Path(job.output).unlink(missing_ok=True)
        raise ModelFileError(
            f"in {job.precision.value} as {job.format.value} its probabilities differ from the original's by up to "
            f"{difference:.2g}: leave it in fp32, or in its own format"
        )
    return Outcome(findings.classes, findings.ending.value, difference)


def _probes(job: Job) -> list[Tensor]:
    return probes(job.side, pixels=job.pixels)


def _say(text: str) -> None:
    sys.stderr.write(f"{PROGRESS}{text}\n")
    sys.stderr.flush()


def _confine(job: Job) -> None:
    if job.kind == "function":
        # Trusted code, that may map more than it takes; what is left is for accidents.
        confine(job.mapped_bytes, cpu_seconds=TIMEOUT_SECONDS * (os.cpu_count() or 2), address_space=False)
        return
    sources = [path for path in (Path(job.source), Path(job.weights)) if path.is_file()]
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
