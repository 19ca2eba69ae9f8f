"""What a job of any kind tries its network on, and what its answers are held to."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gateway_models.networks import onnx_graph
from gateway_models.networks.adapted import Gray, Normalising
from gateway_models.networks.features import check_vectors, vector_difference
from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.isolation import PROGRESS, Job, Outcome
from gateway_models.networks.trial import Findings, probes
from gateway_models.repository.entry import Precision

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


def check_pixels(job: Job, wanted: str) -> None:
    """Raise ModelFileError where what it takes and how the images are said to be prepared contradict each other."""
    if wanted.startswith("uint8") and not job.pixels:
        raise ModelFileError(
            "it takes pixels as uint8, so it normalises them itself: leave out --mean and --std, or with --like or "
            "--preprocessing add --pixels, which ignores their mean and std"
        )
    if wanted.startswith("float32") and job.pixels_implied:
        raise ModelFileError(
            "it takes float32: use --mean and --std, as in training, or --pixels if it wants values of 0 to 255"
        )


def vectors_of(
    job: Job, run: Callable[[Tensor], Any], tensor: str = onnx_graph.VECTORS, dims: int = 2
) -> VectorTensor | None:
    """What is known of the vectors that a network gives beside its scores; None where it is to give none."""
    if not job.features:
        return None
    size = check_vectors(run, job.side, pixels=job.pixels)
    say(f"its vectors have {size} numbers")
    return VectorTensor(size, tensor, dims)


def outcome_of(
    job: Job,
    findings: Findings,
    expected: list[Any],
    written: Callable[[Tensor], Any],
    vectors: VectorTensor | None = None,
) -> Outcome:
    """What was written, held to what was expected of it: scores, or pairs of scores and vectors."""
    answers = [written(batch) for batch in probes_of(job)]
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


def probes_of(job: Job) -> list[Tensor]:
    """What the served network is tried with."""
    if job.normalise:
        return [batch.to(torch.uint8) for batch in probes(job.side, pixels=True)]
    return probes(job.side, pixels=job.pixels)


def images_of(job: Job) -> list[Tensor]:
    """The same as the original takes them."""
    if job.normalise:
        front = Normalising(torch.nn.Identity(), *job.normalise)
        return [front(batch) for batch in probes_of(job)]
    return probes_of(job)


def gray_of(job: Job) -> Gray | None:
    """The one channel that it takes, where it takes one."""
    return Gray(*job.gray) if job.gray else None


def say(text: str) -> None:
    """A line of progress, for `isolation` to pass on."""
    sys.stderr.write(f"{PROGRESS}{text}\n")
    sys.stderr.flush()
