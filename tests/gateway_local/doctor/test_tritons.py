"""The checks of the Triton at GATEWAY_TRITON_URL in `gateway doctor`."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tritonclient.grpc import InferenceServerClient

from gateway.findings import Finding, Level
from gateway_local.doctor.tritons import known_faults, tritons
from gateway_local.runtime.base import TritonRuntime
from gateway_local.server import EmbeddedTriton
from tests.processes import free_port
from tests.settings import Settings
from tests.tritons import running_triton


def findings(url: str, **settings: object) -> list[Finding]:
    return asyncio.run(tritons(Settings(_env_file=None, triton_url=url, **settings)))


def by_check(found: list[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in found}


class UnmanagedTriton(EmbeddedTriton):
    """A Triton whose models cannot be loaded and unloaded, as by Triton's own default."""

    def _arguments(self) -> list[str]:
        return [part for part in super()._arguments() if not part.startswith(("--model-control-mode", "--load-model"))]


@pytest.fixture(scope="module")
def unmanaged(runtime: TritonRuntime, light_repository: Path) -> Iterator[EmbeddedTriton]:
    with running_triton(runtime, light_repository, kind=UnmanagedTriton) as server:
        yield server


def test_ready_triton_passes_and_its_known_faults_are_listed(light_triton):
    """The check loads and unloads no model."""
    with InferenceServerClient(light_triton.url) as client:
        before = client.get_model_repository_index()
        found = findings(light_triton.url)
        assert client.get_model_repository_index() == before
    assert [finding.check for finding in found if finding.level is Level.OK] == [
        "Triton",
        "healing",
        "model",
        "inference",
    ]
    assert [finding for finding in found if finding.level is not Level.OK] == known_faults("2.51.0")


def test_triton_without_model_control_is_a_warning_unless_healing_is_off(unmanaged):
    finding = by_check(findings(unmanaged.url))["healing"]
    assert finding.level is Level.WARN
    assert "--model-control-mode=explicit" in finding.advice
    assert by_check(findings(unmanaged.url, heal=False))["healing"].level is Level.OK


@pytest.mark.parametrize(
    ("model", "words"), [("other", "GATEWAY_MODEL"), ("classifier", "RAW_IMAGE")], ids=["unknown", "other contract"]
)
def test_model_that_cannot_be_used_fails(light_triton, model, words):
    found = by_check(findings(light_triton.url, model=model))
    assert (found["model"].level, found["inference"].level) == (Level.FAIL, Level.FAIL)
    assert words in found["model"].text + found["model"].advice


def test_every_triton_is_checked(light_triton):
    away = f"127.0.0.1:{free_port()}"
    found = [finding for finding in findings(f"{away},{light_triton.url}") if finding.check == "Triton"]
    assert [finding.level for finding in found] == [Level.FAIL, Level.OK]
    assert found[0].text.startswith(f"{away} does not answer")
    assert "GATEWAY_TRITON_URL" in found[0].advice


def test_version_has_the_faults_fixed_after_it():
    assert [len(known_faults(version)) for version in ("2.51.0", "2.74.9", "2.75.0")] == [1, 1, 0]
