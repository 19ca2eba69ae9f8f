"""The output of `gateway model parity`."""

from collections.abc import Sequence
from importlib.metadata import version

from rich.table import Table

from gateway_models.proof.parity import Comparison, Parity
from gateway_models.repository.summary import console

SHOWN = 40
"""The most images in the table; those with the largest differences come first."""
CAUSES = {
    "decode": "OpenCV decodes these files differently from PIL, or the model has large photos decoded fast: compare "
    "with --decode exact",
    "resize": "the preprocessor's parameters are not the training's, or its resize_library is torch",
    "model": "the served network is not the original: its precision, its format, or another file",
}
TF32 = (
    "on a GPU         convolutions there use TF32, of 10 bits, by default: differences of up to some "
    "1e-2 come from that and not from the model. NVIDIA_TF32_OVERRIDE=0 in Triton's environment turns it off, at a "
    "price in speed; --tolerance 1e-2 allows it"
)


def report(parity: Parity, labels: Sequence[str], tolerance: float) -> None:
    """Print the table of images, the totals, the causes of the difference, and the verdict."""
    out = console()
    table = Table("image", "served", "expected", "max", "mean", *parity.stages, box=None, pad_edge=False)
    ordered = sorted(parity.comparisons, key=lambda each: each.largest, reverse=True)
    shown = parity.comparisons if len(ordered) <= SHOWN else ordered[:SHOWN]
    names = [each.path.name for each in shown]
    for each in shown:
        # In folders named after classes, files often have the same names.
        name = each.path.name if names.count(each.path.name) == 1 else f"{each.path.parent.name}/{each.path.name}"
        table.add_row(
            name,
            _top(each, labels, served=True),
            _top(each, labels, served=False) if not each.same_top1 else "the same",
            f"{each.largest:.1e}",
            f"{each.mean:.1e}",
            *(f"{each.from_stage(stage):.1e}" for stage in parity.stages),
        )
    out.print(table)
    if len(ordered) > SHOWN:
        out.print(f"… and {len(ordered) - SHOWN} images that are closer")
    for refused in parity.refused:
        out.print(f"not compared: {refused.path}: {refused.reason}")
    out.print()
    out.print(f"reference        {reference()}")
    out.print(f"images           {len(parity.comparisons)}")
    out.print(f"same top-1       {100 * parity.top1_agreement:.4g} %")
    out.print(f"max difference   {parity.largest:.1e} of a probability, {tolerance:g} allowed")
    out.print(f"mean difference  {parity.mean:.1e}")
    if parity.stages:
        out.print("from             " + ", ".join(f"{stage} {parity.from_stage(stage):.1e}" for stage in parity.stages))
    if parity.embeddings:
        most = max(each.largest for each in parity.embeddings)
        size = len(parity.embeddings[0].served)
        out.print(
            f"embeddings       {size} numbers, cosine {parity.least_cosine:.7f} at least, max difference {most:.1e}"
        )
    if parity.on_gpu:
        out.print(TF32)
    if parity.holds(tolerance):
        out.print("the served answers are the original's", style="green")
        return
    if not parity.comparisons:
        out.print("nothing was compared", style="red")
        return
    if not parity.stages:
        out.print("the answers over HTTP are not the original's: without --gateway each stage is compared", style="red")
        return
    if parity.largest <= tolerance:
        out.print(
            "the served embeddings are not the original's: has the network changed since it was added?", style="red"
        )
        return
    worst = max(parity.stages, key=parity.from_stage)
    out.print(f"the served answers are not the original's: most comes from {worst}. {CAUSES[worst]}", style="red")


def reference() -> str:
    """The libraries, with their versions, that prepared the images for the expected answers."""
    return f"torchvision {version('torchvision')} on Pillow {version('pillow')}"


def _top(comparison: Comparison, labels: Sequence[str], *, served: bool) -> str:
    scores = comparison.served if served else comparison.expected
    best = int(scores.argmax())
    return f"{labels[best]} {scores[best]:.3f}"
