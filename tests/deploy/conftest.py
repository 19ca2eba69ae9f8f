"""The Docker files, parsed."""

import json
import re
from dataclasses import dataclass, field
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


@dataclass
class Stage:
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, keyword: str) -> list[str]:
        return [text for word, text in self.instructions if word == keyword]

    def last(self, keyword: str) -> str:
        return self.all(keyword)[-1]

    def words(self, keyword: str) -> list[str]:
        """The JSON array of an instruction in exec form."""
        return json.loads(re.sub(r"^[^\[]*", "", self.last(keyword)))


@dataclass
class Dockerfile:
    """`arguments` are the defaults of the ARGs before the first FROM; `stages` keep the file's order."""

    arguments: dict[str, str]
    stages: dict[str, Stage]

    def image_below(self, name: str) -> str:
        """The image outside this file that a stage stands on."""
        while name in self.stages:
            name = self.stages[name].base
        return name

    def environment(self, name: str) -> list[Stage]:
        """The stages whose steps make /opt/gateway of an image: its bases, and those that it is copied from."""
        found: list[Stage] = []
        while name in self.stages:
            found.append(stage := self.stages[name])
            copied = re.findall(r"--from=(\S+) /opt/gateway ", " ".join(stage.all("COPY")))
            name = copied[0] if copied else stage.base
        return found

    def needed(self, name: str) -> list[Stage]:
        """Every stage that is built for an image."""
        found: dict[str, Stage] = {}
        names = [name]
        while names:
            found[name] = stage = self.stages[name := names.pop()]
            copied = re.findall(r"from=([a-z-]+)", " ".join(stage.all("COPY") + stage.all("RUN")))
            names += ({stage.base, *copied} & set(self.stages)) - set(found)
        return [*found.values()]


class Reset:
    """What docker compose's `!reset` leaves: nothing, whatever the file below says."""


class ComposeLoader(yaml.SafeLoader):
    pass


ComposeLoader.add_constructor("!reset", lambda loader, node: Reset())


def laid_over(below: Any, above: Any) -> Any:
    """What two compose files make together: maps merge, lists grow, everything else is replaced."""
    if isinstance(below, dict) and isinstance(above, dict):
        merged = {**below, **{key: laid_over(below.get(key), value) for key, value in above.items()}}
        return {key: value for key, value in merged.items() if not isinstance(value, Reset)}
    if isinstance(below, list) and isinstance(above, list):
        return [*below, *above]
    return above


def compose_file(name: str) -> dict[str, Any]:
    return yaml.load((PROJECT / name).read_text(), ComposeLoader)  # noqa: S506  # a SafeLoader with another tag


def parse_dockerfile(**arguments: str) -> Dockerfile:
    """The Dockerfile, with its arguments by name."""
    text = re.sub(r"^\s*#.*\n", "", (PROJECT / "Dockerfile").read_text(), flags=re.MULTILINE)
    parsed = Dockerfile({}, {})
    for line in filter(None, map(str.strip, text.replace("\\\n", " ").splitlines())):
        keyword, _, rest = line.partition(" ")
        if keyword == "FROM":
            base, name = re.fullmatch(r"(\S+) AS (\S+)", rest).groups()
            parsed.stages[name] = Stage(re.sub(r"\$\{(\w+)\}", lambda match: parsed.arguments[match[1]], base))
        elif parsed.stages:
            [*parsed.stages.values()][-1].instructions.append((keyword, rest))
        else:
            name, _, default = rest.partition("=")
            parsed.arguments[name] = arguments.get(name, default)
    return parsed


@pytest.fixture(scope="session")
def dockerfile() -> Dockerfile:
    return parse_dockerfile()


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
