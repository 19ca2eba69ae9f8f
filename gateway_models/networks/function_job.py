"""Probes a Python function in the way that Triton will run it."""

import traceback

from torch import Tensor

from gateway_models.networks.errors import ModelError
from gateway_models.networks.functions import configure, load_staged
from gateway_models.networks.isolation import Job
from gateway_models.networks.job_checks import activation_of, check_pixels, outcome_of, probe_batches_of, probed, report
from gateway_models.networks.probe import activation_name
from gateway_models.repository.entry import Outcome
from gateway_models.repository.spec import Format


def do_function(job: Job) -> Outcome:
    """Probe the function, which is in the version's folder already; raises UserError."""
    folder = job.folder
    report("importing it and calling its load() if it has one")
    function, adapter = load_staged(folder)
    check_pixels(job, function.input)

    def run(images: Tensor) -> Tensor:
        try:
            scores: Tensor = function.scores(images)
        except adapter.UserCodeError as exc:
            raise ModelError(str(exc)) from exc
        except (Exception, SystemExit) as exc:
            for line in traceback.format_exc().splitlines():
                report(line)
            _, _, order = function.input.partition("-")
            shape = [len(images), 3, job.side, job.side] if order == "nchw" else [len(images), job.side, job.side, 3]
            raise ModelError(
                f"on a batch of made-up images, {function.input.partition('-')[0]} {shape}, it failed with "
                f"{adapter.described(exc)}"
            ) from exc
        return scores

    report(f"trying it on images of {job.side}×{job.side} as {function.input}")
    findings = probed(job, run)
    activate = activation_of(job, findings, run)
    name = activation_name(findings.ending, multi_label=job.spec.multi_label)
    configure(folder, input=function.input, activation=name)
    written, _ = load_staged(folder)
    expected = [activate(run(batch)) for batch in probe_batches_of(job)]
    return outcome_of(job, Format.FUNCTION, findings, expected, written.probabilities, input=function.input)
