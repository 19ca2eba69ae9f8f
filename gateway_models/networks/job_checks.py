"""The probe images of a job, and the comparison of the written network's answers with the original's."""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gateway_models.networks.adapted import Normalising
from gateway_models.networks.embeddings import embedding_difference
from gateway_models.networks.errors import ModelError
from gateway_models.networks.isolation import PROGRESS, Job
from gateway_models.networks.photographs import alike
from gateway_models.networks.probe import Ending, Findings, activation, check_classes, probe_batches, probe_network
from gateway_models.repository.entry import Outcome
from gateway_models.repository.spec import PLAIN, Format, ImageTensor, Precision

ALLOWED = {Precision.FP32: 1e-3, Precision.FP16: 2e-2, Precision.BF16: 1e-1}
"""The largest difference of probabilities from the original's on made-up images that rounding explains."""
ALLOWED_COSINE = {Precision.FP32: 1e-5, Precision.FP16: 1e-3, Precision.BF16: 1e-2}
"""The same for embeddings: 1 minus the cosine to the original's."""


GIVE_LOGITS = frozenset({"torchvision", "timm", "huggingface"})
"""Sources whose classifiers end in logits, even if all probe outputs lie between 0 and 1."""


def check_pixels(job: Job, wanted: str) -> None:
    """Raise ModelError where a network's input format and the preprocessing contradict each other."""
    if wanted.startswith("uint8") and not job.pixels:
        raise ModelError(
            "it takes pixels as uint8, so it normalises them itself: leave out --mean and --std, or with --like or "
            "--preprocessing add --pixels, which ignores their mean and std"
        )
    if wanted.startswith("float32") and job.spec.pixels_implied:
        raise ModelError(
            "it takes float32: use --mean and --std, as in training, or --pixels if it takes values of 0 to 255"
        )


def probed(job: Job, run: Callable[[Tensor], Any]) -> Findings:
    """Determine a network's output on made-up images as the preprocessor gives them; raises ModelError."""
    findings = probe_network(run, job.side, pixels=job.pixels)
    if job.kind in GIVE_LOGITS and findings.ending is Ending.SIGMOID:
        return replace(findings, ending=Ending.LOGITS)  # small ones, as from an untrained network
    return findings


def activation_of(job: Job, findings: Findings, run: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """From a network's output to probabilities; says so if it gives photographs the same scores. Raises ModelError.

    `run` takes images fp32 [N, 3, side, side] as the preprocessor gives them.
    """
    multi_label = job.spec.multi_label
    check_classes(findings, job.labels, multi_label=multi_label)
    # Small logits look as after a sigmoid.
    is_odd = findings.ending is Ending.SIGMOID and not multi_label
    activate = activation(Ending.LOGITS if is_odd else findings.ending, multi_label=multi_label)
    if question := alike(lambda images: activate(run(images).float()), job.spec.prepared):
        if is_odd:
            raise ModelError(question)
        report(f"warning: {question}")
    return activation(findings.ending, multi_label=multi_label)


def outcome_of(
    job: Job,
    written_as: Format,
    findings: Findings,
    expected: list[Any],
    written: Callable[[Tensor], Any],
    embedding_size: int = 0,
    input: str = PLAIN,  # noqa: A002
) -> Outcome:
    """Compare the written network's answers with the expected ones: scores, or pairs of scores and embeddings.

    `input` is the original's input format, as the record has it.
    """
    answers = [written(batch) for batch in probe_batches_of(job)]
    precision, off = job.spec.precision, 0.0
    if embedding_size:
        off = embedding_difference([answer[1] for answer in answers], [wanted[1] for wanted in expected])
        answers, expected = [answer[0] for answer in answers], [wanted[0] for wanted in expected]
        if not off <= ALLOWED_COSINE[precision]:
            raise ModelError(
                f"in {precision.value} as {written_as.value} its embeddings differ from the original's, with a cosine "
                f"of {1 - off:.6f}: {_instead(job, written_as)}"
            )
    difference = max(float((answer - wanted).abs().max()) for answer, wanted in zip(answers, expected, strict=True))
    if not difference <= ALLOWED[precision]:
        raise ModelError(
            f"in {precision.value} as {written_as.value} its probabilities differ from the original's by up to "
            f"{difference:.2g}: {_instead(job, written_as)}"
        )
    return Outcome(findings.classes, findings.ending.value, difference, written_as, input, embedding_size, off)


def _instead(job: Job, written_as: Format) -> str:
    """Advice if a written network gives other answers than the original."""
    if job.spec.precision is not Precision.FP32:
        return "keep it in fp32"
    if job.kind in {"onnx", "function"}:
        return "add the network that it was made from"
    others = [each for each in (Format.TORCHSCRIPT, Format.ONNX) if each is not written_as]
    return f"use {' or '.join(f'--format {each.value}' for each in others)}"


def probe_batches_of(job: Job) -> list[Tensor]:
    """The made-up images for the served network."""
    if job.spec.tensor is ImageTensor.UINT8:
        return [batch.to(torch.uint8) for batch in probe_batches(job.side, pixels=True)]
    return probe_batches(job.side, pixels=job.pixels)


def images_of(job: Job) -> list[Tensor]:
    """The same images in the original's input format."""
    batches = probe_batches_of(job)
    if job.spec.tensor is ImageTensor.UINT8:
        front = Normalising(torch.nn.Identity(), job.spec.prepared.mean, job.spec.prepared.std)
        return [front(batch) for batch in batches]
    return batches


def report(text: str) -> None:
    """Send a line of progress to the parent process; see `isolation`."""
    sys.stderr.write(f"{PROGRESS}{text}\n")
    sys.stderr.flush()
