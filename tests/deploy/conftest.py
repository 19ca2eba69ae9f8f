"""The chart with its sets of values, and the compose files."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from deploy.generate.helm import Rendered, render
from tests.processes import PROJECT

VALUES = Path(__file__).parent / "values"
SETS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    **{path.stem: yaml.safe_load(path.read_text()) for path in sorted(VALUES.glob("*.yaml"))},
}
"""Values of the chart as platform teams set them, a file each."""


@pytest.fixture(scope="session")
def releases() -> dict[str, Rendered]:
    """The chart with each of SETS."""
    return dict(zip(SETS, render(list(SETS.values())), strict=True))


class Reset:
    """The value of docker compose's `!reset`: nothing, for any value in the file below."""


class ComposeLoader(yaml.SafeLoader):
    pass


ComposeLoader.add_constructor("!reset", lambda loader, node: Reset())


def laid_over(below: Any, above: Any) -> Any:
    """Two compose files as one: maps merge, lists grow, everything else is replaced."""
    if isinstance(below, dict) and isinstance(above, dict):
        merged = {**below, **{key: laid_over(below.get(key), value) for key, value in above.items()}}
        return {key: value for key, value in merged.items() if not isinstance(value, Reset)}
    if isinstance(below, list) and isinstance(above, list):
        return [*below, *above]
    return above


def compose_file(name: str) -> dict[str, Any]:
    return yaml.load((PROJECT / name).read_text(), ComposeLoader)  # noqa: S506  # a SafeLoader with another tag


@pytest.fixture(scope="session")
def gpu_compose() -> dict[str, Any]:
    return compose_file("docker-compose.yml")


@pytest.fixture(scope="session")
def cpu_compose(gpu_compose) -> dict[str, Any]:
    return laid_over(gpu_compose, compose_file("docker-compose.cpu.yml"))


def faults_of(schema: str, *paths: Path) -> str:
    """Why files do not follow a schema that check-jsonschema brings; empty if they do."""
    from check_jsonschema import main  # takes more than a second

    checked = CliRunner().invoke(main, [f"--builtin-schema=vendor.{schema}", *map(str, paths)])
    return "" if checked.exit_code == 0 else checked.output
