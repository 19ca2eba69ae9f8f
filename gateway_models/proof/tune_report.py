"""The output and plot of `gateway model tune`."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten

from rich.table import Table

from gateway_models.proof.tune import AGREEMENT, Measured
from gateway_models.repository.summary import console

REASON_WIDTH = 100
"""The longest reason in the row of a variant that was not measured, in characters."""


def report(
    measured: Sequence[Measured],
    chosen: Measured | None,
    tolerance: float,
    plot: Path,
    *,
    agreement: float = AGREEMENT,
) -> None:
    """Print the table of variants, fastest first, and write it as a PNG to `plot`."""
    from gateway_models.proof.plots import speeds

    out = console()
    table = Table("variant", "images/s", "difference", "same top-1", "", box=None, pad_edge=False)
    ordered = sorted(measured, key=lambda each: each.images_per_second, reverse=True)
    for each in ordered:
        if each.reason:
            # FunctionConfig in full while it was tried.
            table.add_row(each.variant.described(), "-", "-", "-", shorten(each.reason, REASON_WIDTH, placeholder=" …"))
            continue
        note = "" if each.fits(tolerance, agreement) else "beyond the tolerance"
        table.add_row(
            each.variant.described(),
            f"{each.images_per_second:.1f}",
            f"{each.difference:.1e}",
            f"{100 * each.same_top1:.4g} %",
            "chosen" if each == chosen else note,
        )
    out.print(table)
    served = [each for each in ordered if not each.reason]
    if served:
        plot.parent.mkdir(parents=True, exist_ok=True)
        speeds(
            [each.variant.described() for each in served],
            [each.images_per_second for each in served],
            [each.fits(tolerance, agreement) for each in served],
            plot,
        )
        out.print(f"plot: {plot}")
