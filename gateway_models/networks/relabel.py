"""`gateway model labels`: other labels for a zero-shot model."""

import shutil
from dataclasses import replace
from pathlib import Path

from gateway.values.files import whole_file
from gateway.values.labels import read_label_file
from gateway_models.networks.cpu_choice import with_cpu_form
from gateway_models.networks.isolation import TIMEOUT_SECONDS, Job, Report, work
from gateway_models.networks.served_memory import with_memory
from gateway_models.repository.entry import LABELS, Entry, EntryError, Version, read_entry
from gateway_models.repository.retired import retire, retired
from gateway_models.repository.writing import rewrite, staging


def relabel(
    repository: Path, name: str, labels: Path, prompts: tuple[str, ...], report: Report
) -> tuple[Entry, tuple[str, ...]]:
    """Replace a zero-shot model's labels; returns the entry and the ensembles that it no longer has.

    Versions share their labels, so the new version takes the place of all others, whose numbers are not used again:
    the response cache may have their answers. On any failure before that the repository is unchanged.
    """
    old = read_entry(repository, name)
    if not old.spec.texts:
        raise EntryError(
            f"{name} was not added with --zero-shot, so its classes are those of its training: only a new training "
            "changes them"
        )
    if old.steps_after:
        raise EntryError(
            f"{name} has a step after its network, made for its labels: remove the versions with one, relabel it, and "
            "add the step again with `gateway model after`"
        )
    found = read_label_file(labels)
    report(f"{labels}: {found}")
    spec = replace(
        old.spec,
        zero_shot=labels.absolute(),
        texts=found.labels,
        prompts=prompts or old.spec.prompts,
        format=old.format,
    )
    number = max(old.versions.keys() | retired(repository, name)) + 1
    with staging(repository) as folder:
        job = Job(spec, "huggingface", len(spec.texts), folder)
        outcome = work(job, report)
        outcome = with_cpu_form(job, outcome, report, timeout_seconds=TIMEOUT_SECONDS)
        outcome = with_memory(job, outcome, report, timeout_seconds=TIMEOUT_SECONDS)
        entry = replace(old, versions={number: Version(spec, outcome)}, in_use=number)
        target = entry.model_file(repository, number).parent
        shutil.copytree(folder, target)
    with whole_file(repository / old.classifier / LABELS) as draft:
        draft.write_text("".join(f"{text}\n" for text in spec.texts), encoding="utf-8")
    retire(repository, name, *old.versions)
    rewrite(entry, repository)
    gone = tuple(each for each in old.folders if each not in entry.folders)
    for each in gone:
        shutil.rmtree(repository / each, ignore_errors=True)
    for version in old.versions:
        shutil.rmtree(repository / old.classifier / str(version), ignore_errors=True)
    return entry, gone
