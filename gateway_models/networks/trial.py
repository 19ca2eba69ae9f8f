"""Finding out what a network does by trying it: sizes, classes, and what it ends in."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import Tensor

from gateway_models.networks.adapted import PIXELS, PLAIN, Form, arranged, chosen
from gateway_models.networks.file_kinds import ModelFileError

Run = Callable[[Tensor], object]
"""From fp32 [N, C, H, W] to whatever the network gives."""

SIDES = (224, 256, 240, 260, 299, 300, 380, 384, 288, 320, 192, 160, 128, 112, 96, 64, 48, 32, 28)
"""Input sides that are common, tried in order."""
CHANNELS = (3, 1, 4)
INPUTS_TRIED = (PLAIN, "float32-nhwc", "uint8-nchw", "uint8-nhwc")
FEATURES = frozenset({128, 192, 256, 320, 384, 512, 576, 640, 768, 960, 1024, 1280, 1408, 1536, 1792, 2048, 2560})
"""How many features the usual networks have before their last layer."""
ALONE_TOLERANCE = 1e-3
SUM_TOLERANCE = 1e-3


class Ending(StrEnum):
    """What the last layer gives; the value is what people call it."""

    LOGITS = "logits"
    SOFTMAX = "softmax"
    LOG_SOFTMAX = "log-softmax"
    SIGMOID = "sigmoid"


@dataclass(frozen=True, slots=True)
class Findings:
    """What a network takes and gives: images [N, 3, side, side] → [N, classes]."""

    side: int
    classes: int
    ending: Ending


def try_out(run: Run, side: int, *, pixels: bool = False) -> Findings:
    """Run a network on made-up images of a side; raises ModelFileError that says what is wrong and what to do."""
    output = _first_answer(run, side, PIXELS if pixels else 1)
    classes = output.shape[1]
    batches = probes(side, pixels=pixels)
    _check_batches(run, batches, classes)
    outputs = [_tensor(run(batch)) for batch in batches]
    ending = ending_of(outputs)
    lengths = torch.cat(outputs).detach().float().norm(dim=1)
    # A row of one number, or a softmax that is certain, may have length 1 too.
    if classes > 1 and ending in {Ending.LOGITS, Ending.SIGMOID} and _ones(lengths):
        raise ModelFileError(
            "every row it gives has length 1, as embeddings have: they tell how alike two pictures are, and are no "
            f"scores for classes. Put its layer of classes behind it, and save it again; {with_classes(classes)}"
        )
    return Findings(side, classes, ending)


def with_classes(size: int) -> str:
    """How a network that gives vectors alone is served, which has no classes."""
    return (
        f"for its vectors alone add nn.Sequential(model, nn.Linear({size}, 2)), trained or not, with --features auto, "
        "and ask POST /embed"
    )


def probes(side: int, *, pixels: bool = False) -> list[Tensor]:
    """Batches unlike each other, fp32 [2, 3, side, side]: noise of several strengths, even colours, blobs.

    Normalised, or as whole `pixels` of 0 to 255.
    """
    batches = _normalised_probes(side)
    return [(batch * 64 + 128).round().clamp(0, PIXELS) for batch in batches] if pixels else batches


def _normalised_probes(side: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (2, 3, side, side)
    noise = [torch.randn(shape, generator=generator) * scale for scale in (0.3, 1.0, 2.0)]
    blobs = torch.nn.functional.interpolate(torch.randn((2, 3, 4, 4), generator=generator) * 2, size=(side, side))
    return [*noise, blobs, torch.ones(shape), torch.zeros(shape)]


def ending_of(outputs: Iterable[object]) -> Ending:
    """What a last layer is, by its outputs [N, C] for several inputs."""
    rows = torch.cat([_tensor(output).detach().float() for output in outputs])
    _check_finite(rows)
    # Within rounding of a half-precision network.
    within = bool((rows >= -SUM_TOLERANCE).all() and (rows <= 1 + SUM_TOLERANCE).all())
    if within and rows.shape[1] > 1 and _ones(rows.sum(dim=1)):
        return Ending.SOFTMAX
    if rows.shape[1] > 1 and bool((rows <= SUM_TOLERANCE).all()) and _ones(rows.exp().sum(dim=1)):
        return Ending.LOG_SOFTMAX
    return Ending.SIGMOID if within else Ending.LOGITS


def activation(ending: Ending, *, multi_label: bool) -> Callable[[Tensor], Tensor]:
    """What is missing between a last layer and probabilities; raises ModelFileError where the two contradict."""
    if multi_label:
        if ending in {Ending.SOFTMAX, Ending.LOG_SOFTMAX}:
            raise ModelFileError(
                f"it ends in {ending.value}, whose probabilities sum to 1 over all classes: leave out --multi-label"
            )
        return _sigmoid if ending is Ending.LOGITS else _as_it_is
    if ending is Ending.SIGMOID:
        raise ModelFileError(
            "its scores lie between 0 and 1 and do not sum to 1, as with a sigmoid, where each class has a probability "
            "of its own: use --multi-label, or save it without the sigmoid. Or is it not trained yet?"
        )
    return {Ending.LOGITS: _softmax, Ending.LOG_SOFTMAX: _exp, Ending.SOFTMAX: _as_it_is}[ending]


def form_of(network: Run, side: int, said: Form, *, pixels: bool) -> Form:
    """What a network takes, by trying: floats before bytes, channels first before last; `said` where none runs."""
    if said.input:
        return said
    for wanted in INPUTS_TRIED:
        form = replace(said, input=wanted)

        def run(images: Tensor, form: Form = form) -> object:
            return _any_tensor(network(arranged(images, form)))

        if _runs(run, (2, 3, side, side), pixels):
            return form
    return replace(said, input=PLAIN)


def check_classes(findings: Findings, labels: int | None, *, multi_label: bool) -> None:
    """Raise ModelFileError where there is not one label for each class, or one class and no choice."""
    if findings.classes == 1 and not multi_label:
        raise ModelFileError(
            "it returns one number per image, so every image would get the same class: use --multi-label for a "
            "yes/no probability, or train it with two classes"
        )
    if labels is not None and labels != findings.classes:
        features = (
            f". Or is it a network without its last layer, which gives {findings.classes} features? Then, "
            f"{with_classes(findings.classes)}"
            if findings.classes in FEATURES and findings.ending is Ending.LOGITS
            else ""
        )
        raise ModelFileError(
            f"there {f'are {labels} labels' if labels != 1 else 'is 1 label'} and the network has {findings.classes} "
            "classes: give one label per line, in the "
            f"order of the classes in training (sorted folder names with torchvision's ImageFolder){features}"
        )


def _first_answer(run: Run, side: int, largest: int) -> Tensor:
    try:
        output = run(torch.rand((2, 3, side, side)) * largest)
    except ModelFileError:
        raise
    except Exception as exc:
        raise ModelFileError(_why_not(run, side, exc)) from exc
    scores = _tensor(output)
    if scores.dim() != 2 or scores.shape[0] != 2:
        raise ModelFileError(
            f"it gives {list(scores.shape)} for a batch of 2 images, but one score per class, [2, classes], is "
            "expected: is it a classifier, with its last layer?"
        )
    _check_finite(scores)
    return scores


def _tensor(output: object) -> Tensor:
    if isinstance(output, Tensor):
        return output
    return chosen(output, "")


def _why_not(run: Run, side: int, failure: Exception) -> str:
    """What input it takes instead, found by trying."""
    for channels in CHANNELS:
        for other in (side, *SIDES):
            if not _runs(run, (2, channels, other, other)):
                continue
            if channels != 3:
                return (
                    f"it takes {channels} channel{'s' * (channels > 1)} but images have three: red, green and blue. "
                    + (
                        "Use --grayscale, which converts them as Pillow does"
                        if channels == 1
                        else "Add a layer in front that converts them, and save it again"
                    )
                )
            return f"it does not run on {side}×{side} but does on {other}×{other}: use --crop {other}"
    if _runs(run, (1, 3, side, side)):
        return "it takes only one image at a time: was it traced with code that reads the batch's size as a number?"
    # The last line is the reason; those before it are the way there.
    reason = str(failure).strip().splitlines()[-1] if str(failure).strip() else type(failure).__name__
    return f"it does not run on a batch of images [2, 3, {side}, {side}] or of other common sizes: {reason}"


def _any_tensor(output: object) -> object:
    """One tensor of what a network gives, which to count its images by."""
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, (list, tuple)):
        return next((part for part in output if isinstance(part, Tensor)), None)
    return output


def _runs(run: Run, shape: tuple[int, ...], pixels: bool = False) -> bool:  # noqa: FBT001, FBT002  # of a private helper
    try:
        output = run(torch.rand(shape) * (PIXELS if pixels else 1))
    except Exception:  # whatever it is, the shape is not taken
        return False
    return isinstance(output, Tensor) and output.shape[0] == shape[0]


def _check_batches(run: Run, batches: Sequence[Tensor], classes: int) -> None:
    batch = torch.cat(list(batches[:3]))
    together = _tensor(run(batch))
    if list(together.shape) != [len(batch), classes]:
        raise ModelFileError(
            f"it gives {list(together.shape)} for a batch of {len(batch)}, not {[len(batch), classes]}: "
            "was it traced with code that reads the batch's size as a number?"
        )
    again, alone = _tensor(run(batch)), torch.cat([_tensor(run(image[None])) for image in batch])
    scale = max(1.0, float(together.abs().max()))
    if not torch.allclose(together, again, atol=ALONE_TOLERANCE * scale):
        raise ModelFileError(
            "it gives different answers each time: call model.eval() before saving, which turns dropout off"
        )
    if not torch.allclose(together, alone, atol=ALONE_TOLERANCE * scale):
        raise ModelFileError(
            "an image's answer depends on the others in its batch: call model.eval() before saving, so that batch "
            "normalisation uses what it learned"
        )


def _check_finite(scores: Tensor) -> None:
    if not torch.isfinite(scores).all():
        raise ModelFileError("it gives NaN or infinity for ordinary images: were its weights loaded?")


def _ones(sums: Tensor) -> bool:
    return bool(((sums - 1).abs() <= SUM_TOLERANCE).all())


def _softmax(scores: Tensor) -> Tensor:
    return torch.softmax(scores, dim=1)


def _sigmoid(scores: Tensor) -> Tensor:
    return torch.sigmoid(scores)


def _exp(scores: Tensor) -> Tensor:
    return torch.exp(scores)


def _as_it_is(scores: Tensor) -> Tensor:
    return scores


ACTIVATION_NAMES: dict[Callable[[Tensor], Tensor], str] = {
    _softmax: "softmax",
    _sigmoid: "sigmoid",
    _exp: "exp",
    _as_it_is: "none",
}
"""What `activation` gives, by the names that function.json has for it."""
