"""A new version of a model: the network of an existing one, with a post-processing step."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gateway_models.networks.add_checks import check_step_trust
from gateway_models.networks.after import check_step, completed_step, outputs_of
from gateway_models.networks.isolation import Report
from gateway_models.networks.model_source import network_labels
from gateway_models.repository.after import AfterStep, FunctionStep, StepError
from gateway_models.repository.entry import Entry, Version
from gateway_models.repository.manage import entry_with_version
from gateway_models.repository.retired import next_version
from gateway_models.repository.writing import extend, staging


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
    spec = replace(
        below.spec,
        after=step,
        after_labels=labels,
        include=(*below.spec.include, *include),
        trust=below.spec.trust or trust,
    )
    outputs = outputs_of(below.spec, below.outcome, network_labels(old, repository))
    found = check_step(replace(spec, include=tuple(include)), outputs)
    assert found is not None
    number = next_version(repository, name, old.versions)
    with staging(repository) as folder:
        found = completed_step(found, spec, outputs, folder / "step", report)
        spec = replace(below.spec, after=found, trust=spec.trust)
        version = Version(spec, below.outcome, network=old.network_of(base))
        entry = replace(old, versions={**old.versions, number: version})
        extend(old, entry, None, repository, folder / "step", outputs.labels)
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
