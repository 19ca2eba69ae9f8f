"""Runs all checks in order, and prints the findings."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

from gateway.errors import UserError
from gateway.findings import Finding, Level, fail, ok
from gateway.machine.gpus import find_gpus
from gateway.plugin_loading import hooks, needs_key
from gateway.settings import Settings
from gateway.triton.codecs import Codecs
from gateway.triton.footprint import need
from gateway_local.console import PlainConsole
from gateway_local.default_model import NoDefaultModel, default_model
from gateway_local.doctor import machine, repository
from gateway_local.doctor.tritons import CURRENT, FAULTS, tritons
from gateway_local.memory_plan import machine_plan, sized_configs
from gateway_local.paths import default_cache_dir

OPEN = "anyone who reaches the port can use the API, by an address, a local name or a name of GATEWAY_HOSTS"


def examine(model_repository: Path) -> Iterator[Finding]:
    """Check what `gateway up` needs, or `gateway serve` if GATEWAY_TRITON_URL names a Triton elsewhere."""
    settings, finding = machine.settings()
    yield finding
    yield from asyncio.run(_of_plugins(settings))
    yield access(settings)
    if "triton_url" in settings.model_fields_set:
        yield machine.memory(settings, None)
        yield from asyncio.run(tritons(settings))
        return
    yield machine.platform()
    yield machine.triton(default_cache_dir(), FAULTS, CURRENT)
    gpus = find_gpus()
    yield machine.gpu(gpus)
    configs, finding = repository.models(model_repository)
    yield finding
    if configs:
        sizes = machine_plan(settings, model_repository, gpus=gpus.usable)
        yield ok("sizes", "\n".join(sizes.explained()))
        configs = sized_configs(model_repository, sizes)
        try:
            model = default_model(model_repository, settings)
            yield repository.contract(configs, model, Codecs.of_settings(settings))
        except NoDefaultModel as exc:
            yield fail("contract", str(exc), "gateway up refuses to start without a default model")
    models = need(model_repository, configs, gpus=gpus.usable)
    yield machine.memory(settings, models)
    yield machine.shared_memory(sum(each.processes for each in models.footprints))


def access(settings: Settings) -> Finding:
    """Whether requests need a key, as the service's authenticators have it."""
    try:
        needed = needs_key(settings)
    except UserError as exc:
        return fail("access", str(exc), "correct it: the service does not start")
    return ok("access", "requests need a key" if needed else OPEN)


async def _of_plugins(settings: Settings) -> list[Finding]:
    return [*await hooks(settings).examine(settings)]


def show(findings: Sequence[Finding], console: PlainConsole) -> None:
    """Print a line for each finding and one for each advice."""
    for finding in findings:
        text = finding.text.replace("\n", "; ")
        console.print(f"{finding.level.value:<5} {finding.check}: {text}", soft_wrap=True)
        if finding.advice:
            console.print(f"      → {finding.advice}", soft_wrap=True)


def summary(findings: Sequence[Finding]) -> str:
    """The number of failures and warnings."""
    levels = [finding.level for finding in findings]
    failures, warnings = levels.count(Level.FAIL), levels.count(Level.WARN)
    if not failures and not warnings:
        return "all is well"
    parts = [(failures, "failure"), (warnings, "warning")]
    return ", ".join(f"{count} {word}{'s' if count > 1 else ''}" for count, word in parts if count)
