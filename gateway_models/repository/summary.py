"""The final output of the model commands, on stdout."""

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from gateway.triton.contract import pinned
from gateway_local import cpu_network
from gateway_local.console import PlainConsole
from gateway_local.cpu_network import CpuRuntime
from gateway_local.paths import at, sample_image
from gateway_models.repository.entry import FUNCTION_FILES, LABELS, RECORD, Entry, Version
from gateway_models.repository.spec import AUTO, Format, ImageTensor
from gateway_models.repository.writing import preprocessor_files

T = TypeVar("T")


def added(entry: Entry, repository: Path, version: int, service: str, triton: str | None = None) -> None:
    """Print what `gateway model add` wrote, and how to call the model of the service at this URL.

    `triton` is the address of the running Triton that has loaded it, if any.
    """
    spec, outcome = entry.versions[version].spec, entry.versions[version].outcome
    out = console()
    out.print(f"{entry.name} version {version} is in {repository}", style="bold")
    table = Table.grid(padding=(0, 2))
    on = "the images of `tune`" if spec.serving.openvino else "made-up images"
    facts = {
        "network": f"{spec.source}, ends in {outcome.ending}",
        "classes": f"{outcome.classes}, {'each on its own' if entry.multi_label else 'one for an image'}",
        "images": _images(entry),
        **_embeddings(entry, version),
        **_after(entry, version),
        "stored as": f"{entry.format.value}, {spec.precision.value}{_takes(entry)}; probabilities differ from the "
        f"original's by up to {outcome.difference:.1e} on {on}",
        "served by": _serving(entry),
    }
    for name, fact in facts.items():
        table.add_row(f"  {name}", fact)
    out.print(table)
    written = [
        f"{entry.classifier}/{version}/{entry.format.filename}",
        *(f"{entry.classifier}/{version}/{name}" for name in FUNCTION_FILES if entry.format is Format.FUNCTION),
        *(f"{entry.classifier}/{version}/{name}" for name in _cpu_files(outcome.cpu_runtime)),
        f"{entry.classifier}/{LABELS}",
        *(f"{step}/1/model.py" for step in filter(None, [entry.step_after(version)])),
        *(f"{folder}/config.pbtxt" for folder in entry.folders),
        *(f"{entry.preprocessor}/1/{path.name}" for path in preprocessor_files()),
        f"{entry.name}/{RECORD}",
    ]
    out.print("written:")
    for path in written:
        out.print(f"  {path}")
    out.print("to call it:")
    where = "" if version == entry.in_use else f"&version={version}"
    call = f"  curl -F files=@{sample_image()} '{service}/predict?model={entry.name}{where}'"
    parity = f"  gateway model parity {entry.name}{at(repository)}"
    if triton is None:
        out.print(f"{parity}   # the served answers against the original's")
        out.print(f"  {'' if at(repository) == '' else f'GATEWAY_MODEL={entry.name} '}gateway up{at(repository)}")
        out.print(call)
    else:
        out.print(f"{parity} --triton {triton}   # the served answers against the original's")
        out.print(f"{call}   # with the address of the gateway of that Triton")
    if version != entry.in_use:
        out.print(
            f"version {entry.in_use} stays in use; "
            f"`gateway model versions {entry.name} --use {version}{at(repository)}` changes that"
        )


def listed(entries: Sequence[Entry], loaded: Collection[str] | None = None) -> None:
    """Print a row for each model; with the names that a Triton has `loaded`, also whether it is among them."""
    columns = ("name", "classes", "images", "format", "precision", "versions")
    table = Table(*columns, *(() if loaded is None else ("loaded",)), box=None, pad_edge=False)
    for entry in entries:
        side = entry.preprocessing.crop_size
        table.add_row(
            entry.name,
            f"{entry.classes}{' multi-label' if entry.multi_label else ''}",
            f"{side}×{side}",
            entry.format.value,
            entry.computes_in(entry.in_use).value,
            _versions(entry),
            *(() if loaded is None else ("yes" if entry.name in loaded else "no",)),
        )
    console().print(table)


def shown(entry: Entry, repository: Path, labels: Sequence[str]) -> None:
    """Print all details of a model."""
    out = console()
    table = Table.grid(padding=(0, 2))
    some = ", ".join(labels[:5]) + (f", … ({len(labels)} in all)" if len(labels) > 5 else "")
    facts = {
        "repository": str(repository),
        "labels": some,
        "multi-label": "yes" if entry.multi_label else "no",
        "images": _images(entry),
        **_embeddings(entry, entry.in_use),
        **_after(entry, entry.in_use),
        "format": f"{entry.format.value}{_takes(entry)}",
        "served by": _serving(entry),
        "folders": ", ".join(entry.folders),
    }
    out.print(entry.name, style="bold")
    for name, fact in facts.items():
        table.add_row(f"  {name}", fact)
    out.print(table)
    versioned(entry)


def versioned(entry: Entry) -> None:
    """Print a row for each version of a model."""
    table = Table("version", "", "source", "ends in", "precision", "asked by", box=None, pad_edge=False)
    for number, version in sorted(entry.versions.items()):
        several = len(entry.versions) > 1
        table.add_row(
            str(number),
            "in use" if number == entry.in_use else "",
            " ".join(filter(None, [version.spec.source, Path(version.spec.weights or "").name, _then(version)])),
            version.outcome.ending,
            entry.computes_in(number).value,
            pinned(entry.name, number) if several else entry.name,
        )
    console().print(table)


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


def _images(entry: Entry) -> str:
    return f"{'gray (one channel), ' if entry.spec.grayscale else ''}{entry.preprocessing.described()}"


def _embeddings(entry: Entry, version: int) -> dict[str, str]:
    """The row about embeddings, if the model gives them."""
    if not entry.embedding_size:
        return {}
    layer, off = entry.versions[version].spec.features, entry.versions[version].outcome.embedding_difference
    where = "the input of the last linear layer" if layer == AUTO else layer
    return {"embeddings": f"{entry.embedding_size} numbers, {where}; 1 - cosine to the original's is up to {off:.1e}"}


def _after(entry: Entry, version: int) -> dict[str, str]:
    """The row about the step after the network, if the version has one."""
    found = entry.versions[version]
    if found.spec.after is None:
        return {}
    return {"then": f"{found.spec.after.described()}: {found.classes} classes"}


def _then(version: Version) -> str:
    return f"then {version.spec.after.described()}" if version.spec.after else ""


def _cpu_files(runtime: CpuRuntime | None) -> tuple[str, ...]:
    """The files beside a model.pt that say, or are, what runs it on a CPU."""
    if runtime is None:
        return ()
    return cpu_network.FILES if runtime is CpuRuntime.ONNXRUNTIME else (cpu_network.RECORD,)


def _takes(entry: Entry) -> str:
    return ", takes uint8 pixels" if entry.tensor is ImageTensor.UINT8 else ""


def _serving(entry: Entry) -> str:
    serving = entry.serving
    device = f"GPU {', '.join(map(str, serving.gpu_numbers))}" if serving.gpus else "every GPU, else the CPU"
    delay = f", waited for up to {serving.queue_delay_us:,} µs" if serving.queue_delay_us else ""
    preferred = serving.preferred
    sizes = "" if preferred is None else f", {', '.join(map(str, preferred)) or 'none'} preferred"
    return (
        f"{_counted(serving.instances, 'instance')} on {device}"
        f"{f' by OpenVINO in {serving.openvino.value}' if serving.openvino else ''}, "
        f"{_counted(serving.preprocessor_instances, 'preprocessor')}, batches of up to "
        f"{serving.max_batch_size}{sizes}{delay}, "
        f"cache {'on' if serving.cache else 'off'}"
        f"{', and on the network' if serving.cache_classifier else ''}"
    )


def _counted(count: int | None, what: str) -> str:
    return f"{what}s sized to the machine" if count is None else f"{count} {what}{'s' * (count > 1)}"


def _versions(entry: Entry) -> str:
    return ", ".join(f"{number} in use" if number == entry.in_use else str(number) for number in sorted(entry.versions))
