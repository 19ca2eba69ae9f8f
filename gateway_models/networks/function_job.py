"""A Python function, tried as Triton will run it."""

import json
import traceback
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.functions import FUNCTION, Said
from gateway_models.networks.isolation import Job, Outcome
from gateway_models.networks.job_checks import (
    check_pixels,
    outcome_of,
    probes_of,
    say,
)
from gateway_models.networks.staged import load_staged
from gateway_models.networks.trial import (
    ACTIVATION_NAMES,
    activation,
    check_classes,
    try_out,
)


def do_function(job: Job) -> Outcome:
    """The function lies in its folder already, where it is tried as Triton will run it."""
    folder = Path(job.output).parent
    said = Said(**json.loads((folder / FUNCTION).read_text()))
    say(f"importing {said.module}.py and calling load() where it has one")
    function, adapter = load_staged(folder)
    check_pixels(job, function.input)

    def run(images: Tensor) -> Tensor:
        try:
            scores: Tensor = function.scores(images)
        except adapter.FunctionError as exc:
            raise ModelFileError(str(exc)) from exc
        except (Exception, SystemExit) as exc:
            for line in traceback.format_exc().splitlines():
                say(line)
            _, _, order = function.input.partition("-")
            shape = [len(images), 3, job.side, job.side] if order == "nchw" else [len(images), job.side, job.side, 3]
            raise ModelFileError(
                f"on a batch of made-up images, {function.input.partition('-')[0]} {shape}, it failed with "
                f"{adapter.described(exc)}"
            ) from exc
        return scores

    say(f"trying it on images of {job.side}×{job.side} as {function.input}")
    findings = try_out(run, job.side, pixels=job.pixels)
    check_classes(findings, job.labels, multi_label=job.multi_label)
    finished = activation(findings.ending, multi_label=job.multi_label)
    replace(said, input=function.input, activation=ACTIVATION_NAMES[finished]).write(folder)
    written, _ = load_staged(folder)
    outcome = outcome_of(job, findings, [finished(run(batch)) for batch in probes_of(job)], written.probabilities)
    return replace(outcome, input=function.input)
