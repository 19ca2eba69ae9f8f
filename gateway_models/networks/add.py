"""`gateway model add`: from a trained network to a model repository entry."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter

from gateway.values.labels import read_label_file
from gateway.values.rollout import Rollout
from gateway_models.networks.add_checks import (
    check_folders_are_free,
    check_same,
    check_step_trust,
    check_trust,
    check_written,
    check_zero_shot,
    default_tensor,
    entry_to_extend,
    with_shared,
)
from gateway_models.networks.after import check_step, completed_step
from gateway_models.networks.cpu_form import with_cpu_form
from gateway_models.networks.errors import ModelError
from gateway_models.networks.isolation import Job, Report, Task, work
from gateway_models.networks.model_source import Source, find_labels, find_preprocessing, find_source, network_labels
from gateway_models.networks.served_memory import with_memory
from gateway_models.repository.after import AfterStep, FunctionStep, StepError
from gateway_models.repository.card import read_pictures, write_pictures
from gateway_models.repository.entry import Entry, EntryError, Outcome, Version, check_name, entry_names, read_entry
from gateway_models.repository.manage import entry_with_version, use, user
from gateway_models.repository.preprocessing import AS_PIXELS
from gateway_models.repository.retired import next_version
from gateway_models.repository.spec import Format, ModelSpec, Precision
from gateway_models.repository.writing import extend, rewrite, staging, write

OWN_FORMATS = {"onnx": Format.ONNX, "function": Format.FUNCTION}
"""By kind of source; other kinds are TorchScript by default."""
OWN_PROCESSORS = ("huggingface", "timm")
"""Kinds of sources whose libraries have code that prepares images."""
RUNS_CODE = ("exported", "torchscript", "function")
"""Kinds of sources whose code is executed with --trust."""


def add(spec: ModelSpec, repository: Path, report: Report) -> Entry:
    """Write a model's folders into a repository and return its entry; raises UserError.

    On any failure, including an interrupt, the repository is left unchanged.
    """
    check_name(spec.name)
    old = entry_to_extend(spec.name, spec.version, repository)
    if old is None:
        check_folders_are_free(spec.name, repository)
    source = find_source(spec)
    check_trust(source)
    check_zero_shot(source)
    source = with_labels(source, repository, report)
    spec = completed(source, old)
    labels = (
        network_labels(old, repository)
        if old and spec.labels is None and not source.described.labels
        else find_labels(source, spec.labels)
    )
    pictures = read_pictures(spec.example, labels)
    spec = replace(spec, example=())
    for path in (spec.labels, spec.zero_shot):
        if path:
            report(f"{path}: {read_label_file(path)}")
    if old:
        check_same(old, spec, labels, repository)
    number = spec.version or next_version(repository, spec.name)
    if old is None and spec.version:
        report(f"{repository} has no model {spec.name!r} yet: it is a new one, with version {number} alone")
    elif old is None and number > 1:
        report(f"it is version {number}: earlier ones of this name were removed, and a cache may have their answers")
    with staging(repository) as folder:
        network = folder / "network"
        network.mkdir()
        if source.function:
            source.function.stage("function", network, input=spec.input, activation="none")
        job = Job(spec, source.kind, len(labels), network)
        outcome = work(job, report, TypeAdapter(Outcome))
        outcome = with_cpu_form(job, outcome, report)
        outcome = with_memory(job, outcome, report)
        version = Version(spec, outcome)
        file = network / outcome.format.filename
        if old is None:
            entry = Entry(spec.name, {number: version}, Rollout.of([str(number)], by=user()))
            write(entry, labels, file, repository)
        elif old.embedding_size != outcome.embedding_size:
            raise EntryError(
                f"embeddings have {outcome.embedding_size} numbers and those of the other versions "
                f"{old.embedding_size}: add it under another name, which clients select by ?model=, not as a version "
                f"of {old.name!r}"
            )
        else:
            entry = replace(old, versions={**old.versions, number: version})
            extend(old, entry, file, repository)
        write_pictures(repository / entry.name, pictures)
        return entry


def add_changed(spec: ModelSpec, repository: Path, report: Report) -> tuple[Entry, int, bool]:
    """Add a model, or its next version if its files or options have changed, and put that version into use.

    Returns the entry, the version that has these files, and whether anything was written; raises UserError.
    """
    check_name(spec.name)
    if spec.version is None and spec.name in entry_names(repository):
        old = read_entry(repository, spec.name)
        number = _version_like(spec, old, repository)
        if number is not None:
            old, is_new = _with_card(spec, old, repository)
            # `gateway model calibrate` or `postprocess` may have added a step to this version's network.
            if number == old.network_of(old.in_use):
                return old, old.in_use, is_new
            return _used(repository, spec.name, number), number, True
        spec = replace(spec, version=next_version(repository, spec.name, old.versions))
    entry = add(spec, repository, report)
    number = spec.version or entry.in_use
    return entry if number == entry.in_use else _used(repository, spec.name, number), number, True


def _with_card(spec: ModelSpec, old: Entry, repository: Path) -> tuple[Entry, bool]:
    """Write the description and the pictures that were given; returns the entry, and whether its record changed."""
    write_pictures(repository / old.name, read_pictures(spec.example, network_labels(old, repository)))
    if spec.description in {"", old.spec.description}:
        return old, False
    rewrite(old.changed(description=spec.description), repository)
    return read_entry(repository, old.name), True


def _used(repository: Path, name: str, version: int) -> Entry:
    use(repository, name, Rollout.of([str(version)], by=user()))
    return read_entry(repository, name)


def _version_like(spec: ModelSpec, old: Entry, repository: Path) -> int | None:
    """The newest version of a model that was added from the same files with the same options; None if there is none."""
    source = find_source(spec)
    check_zero_shot(source)
    new, labels = completed(source, old), network_labels(old, repository)
    if spec.labels and find_labels(source, spec.labels) != labels:
        return None  # `add` refuses other labels
    # `gateway model tune` may have chosen the precision of a version.
    any_precision = spec.precision is Precision.FP32 and "precision" not in spec.named
    for number, each in sorted(old.versions.items(), reverse=True):
        wanted = replace(new, precision=each.spec.precision) if any_precision else new
        if each.spec.after is None and _described(wanted) == _described(each.spec):
            return number
    return None


def _described(spec: ModelSpec) -> tuple[object, ...]:
    """The parts of a spec that decide a version's answers; a source with a checksum may have another path."""
    source = None if spec.sha256 and not spec.weights else spec.source
    options = (spec.preprocessing, spec.precision, spec.tensor, spec.format, spec.features, spec.input, spec.output)
    return (spec.sha256, source, options, spec.texts, spec.prompts)


def completed(source: Source, old: Entry | None) -> ModelSpec:
    """The spec of a source, completed from the source, existing versions and defaults; raises UserError."""
    spec = with_shared(source.spec, old) if old else source.spec
    converted = source.file is not None and bool(source.file.opener)
    becomes_onnx = converted or (spec.features and source.kind != "function")
    own = Format.ONNX if becomes_onnx else OWN_FORMATS.get(source.kind, Format.TORCHSCRIPT)
    written_as = spec.format or own
    check_written(own, written_as, spec)
    # By default, a new version has the preprocessing of the others.
    like_others = spec.preprocessing is None and spec.like is None and source.preprocessing is None
    others = old if like_others else None
    preprocessing = find_preprocessing(source, others.spec.prepared if others else spec.preprocessing)
    library = spec.resize_library
    if library is None and old and spec.preprocessing is None:
        library = old.spec.prepared.resize_library
    if library is not None:
        preprocessing = replace(preprocessing, resize_library=library)
    if spec.pixels:
        preprocessing = replace(preprocessing, mean=AS_PIXELS["mean"], std=AS_PIXELS["std"])
    spec = replace(
        spec,
        like=source.like or None,
        preprocessing=preprocessing,
        own_processor=source.kind in OWN_PROCESSORS
        and source.preprocessing is not None
        and spec.preprocessing is None
        and not spec.pixels,
        processor=others.spec.processor if others else spec.processor,
        named=(),
        description=spec.description or (old.spec.description if old else "") or source.described.sentence,
        tensor=spec.tensor or default_tensor(written_as),
        format=written_as,
        trust=spec.trust and (source.kind in RUNS_CODE or converted),
    )
    spec.check_gray()
    return spec


def add_step(
    step: AfterStep,
    repository: Path,
    name: str,
    base: int | None,
    report: Report,
    *,
    labels: Path | None = None,
    include: Sequence[Path] = (),
    trust: bool = False,
) -> tuple[Entry, int]:
    """Add a version that runs the network of version `base`, None for the one in use, and then the step.

    Keeps a calibration of the base, unless the step has another one. Returns the entry and the number of the new
    version, which is not put into use. Raises UserError; the repository is then unchanged.
    """
    old = entry_with_version(repository, name, base)
    base = base or old.in_use
    below = old.versions[base]
    step = _on_top_of(below.spec.after, step, f"version {base} of {name}")
    check_step_trust(step, trust=trust)
    classes = network_labels(old, repository)
    step = check_step(step, classes, labels, include, multi_label=below.spec.multi_label)
    spec = replace(below.spec, after=step, trust=below.spec.trust or trust)
    number = next_version(repository, name, old.versions)
    with staging(repository) as folder:
        spec = replace(spec, after=completed_step(spec, below.outcome, folder / "step", report))
        version = Version(spec, below.outcome, network=old.network_of(base))
        entry = replace(old, versions={**old.versions, number: version})
        extend(old, entry, None, repository, folder / "step", classes)
    return entry, number


def _on_top_of(below: AfterStep | None, step: AfterStep, version: str) -> AfterStep:
    """The step with the calibration of the step that it replaces; raises StepError if one of them is a function."""
    if below is None:
        return step
    if isinstance(below, FunctionStep) or isinstance(step, FunctionStep):
        raise StepError(
            f"{version} has a step already ({below.described()}), which this one would replace: name a version without "
            "one by --version"
        )
    if step.temperature == 1 and not step.bias:
        return replace(step, temperature=below.temperature, bias=below.bias)
    return step


def with_labels(source: Source, repository: Path, report: Report) -> Source:
    """The source with the labels of its file, which may have to be loaded for them."""
    if not source.file or not source.file.has_labels:
        return source
    job = Job(source.spec, source.kind, 0, repository, Task.LABELS)
    labels = work(job, report, TypeAdapter(tuple[str, ...]))
    given = source.spec.labels and find_labels(source, source.spec.labels)
    if given and given != labels and sorted(given) == sorted(labels):
        raise ModelError(
            f"{source.spec.labels} has the classes in another order than the model: leave --labels out, since the "
            "model has them"
        )
    return replace(source, described=replace(source.described, labels=labels))
