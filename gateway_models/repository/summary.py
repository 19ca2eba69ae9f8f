"""The final output of the model commands, on stdout."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from gateway.triton.contract import pinned
from gateway_local.console import PlainConsole
from gateway_local.elastic import recorded
from gateway_local.paths import at, sample_image
from gateway_models.repository.entry import Entry
from gateway_models.repository.spec import Format, ImageTensor

T = TypeVar("T")
SHOWN = 40
"""The most rows of a report's table."""


@dataclass(frozen=True, slots=True)
class Report:
    """A table, a line for each image that was left out, facts by name, and the verdict."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left_out: Iterable[str] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    verdict: str = ""
    passed: bool = True

    def print(self) -> None:
        """Print it; of a table of more than SHOWN rows only the first ones."""
        out = console()
        table = Table(*self.columns, box=None, pad_edge=False)
        for row in self.rows[:SHOWN]:
            table.add_row(*row)
        out.print(table)
        if len(self.rows) > SHOWN:
            out.print(f"… and {len(self.rows) - SHOWN} more")
        for line in self.left_out:
            out.print(f"not counted: {line}")
        out.print()
        width = max(map(len, self.facts), default=0) + 2
        for name, text in self.facts.items():
            out.print(f"{name:{width}}{text}")
        if self.verdict:
            out.print(self.verdict, style="green" if self.passed else "red")


def added(entry: Entry, repository: Path, version: int, service: str, triton: str | None = None) -> None:
    """Print the entry of `gateway model add`, and how to call the model of the service at this URL.

    `triton` is the address of the running Triton that has loaded it, if any.
    """
    out = console()
    _print(f"{entry.name} version {version} is in {repository}", _facts(entry, version))
    where = "" if version == entry.in_use else f"&version={version}"
    call = f"  curl -F files=@{sample_image()} '{service}/predict?model={entry.name}{where}'"
    if triton is None:
        out.print("to serve it:")
        out.print(f"  gateway up --model {entry.name}{at(repository)}")
        out.print(call)
    else:
        out.print("to prove and to call it:")
        out.print(f"  gateway model verify {entry.name}{at(repository)} --triton {triton}")
        out.print(f"{call}   # with the address of the gateway of that Triton")
    if version != entry.in_use:
        out.print(
            f"version {entry.in_use} stays in use; "
            f"`gateway model use {entry.name} {version}{at(repository)}` changes that"
        )


def listed(entries: Sequence[Entry]) -> None:
    """Print a row for each model."""
    table = Table("name", "classes", "images", "format", "precision", "versions", box=None, pad_edge=False)
    for entry in entries:
        side = entry.spec.prepared.crop_size
        table.add_row(
            entry.name,
            f"{entry.versions[entry.in_use].classes}{' multi-label' if entry.spec.multi_label else ''}",
            f"{side}×{side}",
            entry.format.value,
            entry.spec.computes_in.value,
            _versions(entry),
        )
    console().print(table)


def shown(entry: Entry, repository: Path, labels: Sequence[str]) -> None:
    """Print all details of a model."""
    some = ", ".join(labels[:5]) + (f", … ({len(labels)} in all)" if len(labels) > 5 else "")
    folders = ", ".join(entry.folders)
    facts = {**_facts(entry, entry.in_use), "on a CPU": _on_cpu(entry, repository), "folders": folders}
    _print(entry.name, {"repository": str(repository), "labels": some, **facts})
    versioned(entry)


def _facts(entry: Entry, version: int) -> dict[str, str]:
    """The known facts about a version."""
    found = entry.versions[version]
    spec, outcome = found.spec, found.outcome
    facts = {
        "network": f"{spec.source}, ends in {outcome.ending}",
        "classes": f"{outcome.classes}, {'each on its own' if entry.spec.multi_label else 'one for an image'}",
        "images": f"{'gray (one channel), ' if spec.grayscale else ''}{entry.spec.prepared.described()}",
    }
    if entry.embedding_size:
        off = f"1 - cosine to the original's is up to {outcome.embedding_difference:.1e}"
        facts["embeddings"] = f"{entry.embedding_size} numbers; {off}"
    if spec.after is not None:
        facts["then"] = f"{spec.after.described()}: {found.classes} classes"
    takes = ", takes uint8 pixels" if entry.tensor is ImageTensor.UINT8 else ""
    on = "the images of `tune`" if spec.serving.openvino else "made-up images"
    off = f"probabilities differ from the original's by up to {outcome.difference:.1e} on {on}"
    facts["stored as"] = f"{entry.format.value}, {spec.precision.value}{takes}; {off}"
    return facts


def _on_cpu(entry: Entry, repository: Path) -> str:
    """The runtime of the version in use on a CPU, and its threads on this machine; "" for a Python function."""
    if entry.format is Format.ONNX:
        runtime = "openvino" if entry.spec.serving.openvino else "onnxruntime"
    else:
        runtime = entry.versions[entry.in_use].outcome.cpu_runtime or ""
    timed = recorded(entry.model_file(repository, entry.in_use))
    threads = f", {timed.chosen} threads for a lone image" if timed and timed.chosen > 1 else ""
    return runtime and f"{runtime}{threads}"


def _print(heading: str, facts: Mapping[str, str]) -> None:
    table = Table.grid(padding=(0, 2))
    for name, fact in facts.items():
        if fact:
            table.add_row(f"  {name}", fact)
    console().print(heading, style="bold")
    console().print(table)


def versioned(entry: Entry) -> None:
    """Print a row for each version of a model."""
    table = Table("version", "", "source", "ends in", "precision", "asked by", box=None, pad_edge=False)
    for number, version in sorted(entry.versions.items()):
        several = len(entry.versions) > 1
        then = f"then {version.spec.after.described()}" if version.spec.after else ""
        table.add_row(
            str(number),
            _role(entry, str(number)),
            " ".join(filter(None, [version.spec.source, Path(version.spec.weights or "").name, then])),
            version.outcome.ending,
            version.spec.computes_in.value,
            pinned(entry.name, number) if several else entry.name,
        )
    console().print(table)
    if since := entry.rollout.since:
        console().print(f"since {since:%Y-%m-%d %H:%M:%S %Z}{entry.rollout.by and f' by {entry.rollout.by}'}")


def console() -> PlainConsole:
    """The console for results."""
    # Lines are not wrapped, so that paths can be copied; without a terminal there is no width.
    return PlainConsole(soft_wrap=True, width=None if sys.stdout.isatty() else 400)


def progress(items: Iterable[T], total: int, text: str) -> Iterator[T]:
    """Yield the items, with a progress bar if stderr is a terminal."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=PlainConsole(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=total)
        for item in items:
            yield item
            bar.advance(task)


def _versions(entry: Entry) -> str:
    return ", ".join(f"{number} {_role(entry, str(number))}".strip() for number in sorted(entry.versions))


def _role(entry: Entry, version: str) -> str:
    """The role of a version, in words; "" for none."""
    rollout = entry.rollout
    shadow = f"shadow of {rollout.shadow[version]} %" if version in rollout.shadow else ""
    share = "in use" if len(rollout.shares) == 1 else f"{100 * rollout.share(version):.4g} % of requests"
    return " and ".join(filter(None, [share if version in rollout.shares else "", shadow]))
