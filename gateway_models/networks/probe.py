"""Probing a network with made-up images: its classes, and the activation that it ends in."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from gateway_models.networks.adapted import PIXELS, chosen
from gateway_models.networks.errors import ModelError

Run = Callable[[Tensor], object]
"""From images fp32 [N, C, H, W] to the network's output."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda scores: torch.softmax(scores, dim=1),
    "sigmoid": torch.sigmoid,
    "exp": torch.exp,
    "none": lambda scores: scores,
}
"""From a network's output to probabilities, by their names in served.json."""
ALONE_TOLERANCE = 1e-3
SUM_TOLERANCE = 1e-3


class Ending(StrEnum):
    """The activation of the last layer; the value is its usual name."""

    LOGITS = "logits"
    SOFTMAX = "softmax"
    LOG_SOFTMAX = "log-softmax"
    SIGMOID = "sigmoid"


@dataclass(frozen=True, slots=True)
class Findings:
    """What a network gives, [N, classes]."""

    classes: int
    ending: Ending


def probe_network(run: Run, side: int, *, pixels: bool = False) -> Findings:
    """Run a network on made-up images of `side` pixels; raises ModelError with the fault and the remedy."""
    output = _first_answer(run, side, PIXELS if pixels else 1)
    classes = output.shape[1]
    batches = probe_batches(side, pixels=pixels)
    _check_batches(run, batches, classes)
    outputs = [_tensor(run(batch)) for batch in batches]
    ending = ending_of(outputs)
    lengths = torch.cat(outputs).detach().float().norm(dim=1)
    # A row of one number, or a softmax with a probability of 1, may have length 1 too.
    if classes > 1 and ending in {Ending.LOGITS, Ending.SIGMOID} and _ones(lengths):
        raise ModelError(
            "every row of its output has length 1, like embeddings, which measure how similar two images are; they are "
            f"not scores for classes. Append its classification layer and save it again; {with_classes(classes)}"
        )
    return Findings(classes, ending)


def with_classes(size: int) -> str:
    """Advice on how to serve a network that gives only embeddings and has no classes."""
    return (
        f"to serve its embeddings only, add nn.Sequential(model, nn.Linear({size}, 2)), trained or not, with "
        "--embeddings, and call POST /embed"
    )


def probe_batches(side: int, *, pixels: bool = False) -> list[Tensor]:
    """Different batches, fp32 [2, 3, side, side]: noise of several strengths, even colours, blobs.

    Normalised, or whole numbers of 0 to 255 with `pixels`.
    """
    batches = _normalised_batches(side)
    return [(batch * 64 + 128).round().clamp(0, PIXELS) for batch in batches] if pixels else batches


def _normalised_batches(side: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (2, 3, side, side)
    noise = [torch.randn(shape, generator=generator) * scale for scale in (0.3, 1.0, 2.0)]
    blobs = torch.nn.functional.interpolate(torch.randn((2, 3, 4, 4), generator=generator) * 2, size=(side, side))
    return [*noise, blobs, torch.ones(shape), torch.zeros(shape)]


def ending_of(outputs: Iterable[object]) -> Ending:
    """The activation of the last layer, detected from its outputs [N, C] for several inputs."""
    rows = torch.cat([_tensor(output).detach().float() for output in outputs])
    _check_finite(rows)
    # The tolerance covers the rounding of a half-precision network.
    within = bool((rows >= -SUM_TOLERANCE).all() and (rows <= 1 + SUM_TOLERANCE).all())
    if within and rows.shape[1] > 1 and _ones(rows.sum(dim=1)):
        return Ending.SOFTMAX
    if rows.shape[1] > 1 and bool((rows <= SUM_TOLERANCE).all()) and _ones(rows.exp().sum(dim=1)):
        return Ending.LOG_SOFTMAX
    _check_total(rows)
    return Ending.SIGMOID if within else Ending.LOGITS


def _check_total(rows: Tensor) -> None:
    """Raise ModelError where scores that differ between images add up to the same number, such as 100."""
    total = rows.sum(dim=1)
    tolerance = SUM_TOLERANCE * float(total.abs().max())
    is_constant = bool(((total - total[0]).abs() <= tolerance).all())
    differ = bool(((rows - rows[0]).abs() > tolerance).any())
    if rows.shape[1] > 1 and is_constant and differ and bool((rows >= 0).all()):
        raise ModelError(
            f"its scores are never below 0 and add up to {float(total[0]):.3g} for every image, as percentages do: "
            "divide them in the network, so that they add up to 1, and save it again"
        )


def activation_name(ending: Ending, *, multi_label: bool) -> str:
    """The key in ACTIVATIONS that makes probabilities of a network's output; ModelError if both contradict."""
    if multi_label:
        if ending in {Ending.SOFTMAX, Ending.LOG_SOFTMAX}:
            raise ModelError(
                f"it ends in {ending.value}, whose probabilities sum to 1 over all classes: leave out --multi-label"
            )
        return "sigmoid" if ending is Ending.LOGITS else "none"
    if ending is Ending.SIGMOID:
        raise ModelError(
            "its scores lie between 0 and 1 and do not sum to 1, as after a sigmoid, where each class has its own "
            "probability: use --multi-label, or save it without the sigmoid. Or is it not trained yet?"
        )
    return {Ending.LOGITS: "softmax", Ending.LOG_SOFTMAX: "exp", Ending.SOFTMAX: "none"}[ending]


def activation(ending: Ending, *, multi_label: bool) -> Callable[[Tensor], Tensor]:
    """The function of `activation_name`."""
    return ACTIVATIONS[activation_name(ending, multi_label=multi_label)]


def check_classes(findings: Findings, labels: int | None, *, multi_label: bool) -> None:
    """Raise ModelError where labels and classes differ in number, or a single-label network has one class."""
    if findings.classes == 1 and not multi_label:
        raise ModelError(
            "it returns one number per image, so every image would get the same class: use --multi-label for a "
            "yes/no probability, or train it with two classes"
        )
    if labels is not None and labels != findings.classes:
        raise ModelError(
            f"there {f'are {labels} labels' if labels != 1 else 'is 1 label'} and the network has {findings.classes} "
            "classes: give one label per line, in the "
            f"order of the classes in training (sorted folder names with torchvision's ImageFolder)"
        )


def _first_answer(run: Run, side: int, largest: int) -> Tensor:
    try:
        output = run(torch.rand((2, 3, side, side)) * largest)
    except ModelError:
        raise
    except Exception as exc:  # of the network's own code
        # The last line is the reason; the lines before it are the traceback.
        reason = (str(exc).strip().splitlines() or [type(exc).__name__])[-1]
        raise ModelError(
            f"it does not run on a batch of images [2, 3, {side}, {side}]: {reason}. Use --crop for another size, "
            "--grayscale for one channel, or --input for channels last or uint8; a network for one image at a time "
            "must be exported again for any batch"
        ) from exc
    scores = _tensor(output)
    if scores.dim() != 2 or scores.shape[0] != 2:
        raise ModelError(
            f"it gives {list(scores.shape)} for a batch of 2 images, but one score per class, [2, classes], is "
            "expected: is it a classifier of whole images, with its last layer?"
        )
    _check_finite(scores)
    return scores


def _tensor(output: object) -> Tensor:
    if isinstance(output, Tensor):
        return output
    return chosen(output, "")


def _check_batches(run: Run, batches: Sequence[Tensor], classes: int) -> None:
    batch = torch.cat(list(batches[:3]))
    together = _tensor(run(batch))
    if list(together.shape) != [len(batch), classes]:
        raise ModelError(
            f"it gives {list(together.shape)} for a batch of {len(batch)}, not {[len(batch), classes]}: "
            "was it traced with code that reads the batch's size as a number?"
        )
    again, alone = _tensor(run(batch)), torch.cat([_tensor(run(image[None])) for image in batch])
    scale = max(1.0, float(together.abs().max()))
    if not torch.allclose(together, again, atol=ALONE_TOLERANCE * scale):
        raise ModelError(
            "its output differs from call to call: call model.eval() before saving, which turns dropout off"
        )
    if not torch.allclose(together, alone, atol=ALONE_TOLERANCE * scale):
        raise ModelError(
            "an image's answer depends on the others in its batch: call model.eval() before saving, so that batch "
            "normalisation uses what it learned"
        )


def _check_finite(scores: Tensor) -> None:
    if not torch.isfinite(scores).all():
        raise ModelError("it gives NaN or infinity for ordinary images: were its weights loaded?")


def _ones(sums: Tensor) -> bool:
    return bool(((sums - 1).abs() <= SUM_TOLERANCE).all())
