"""The tables of docs/reference/ and what under deploy/ is made from code, written anew: `make docs`.

Each stands between two comments, `<!-- table: NAME -->` and `<!-- end -->`; a test fails where one is out of date.
"""

import inspect
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from click import Command
from prometheus_client.metrics import MetricWrapperBase
from typer.core import TyperGroup
from typer.main import get_command

from gateway import metrics
from gateway.api.routes.limits import FIXED
from gateway.app import create_app
from gateway.command_line.main import app
from gateway.environment import allowed
from gateway.plugin_loading import errors_of, installed, is_ours, metrics_of, settings_class
from gateway.settings import fixed, variable
from gateway.values.quantities import size

Settings = settings_class()

PROJECT = Path(__file__).resolve().parents[1]
REFERENCE = PROJECT / "docs" / "reference"


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    lines = [list(header), ["---"] * len(list(header)), *map(list, rows)]
    return "\n".join(
        f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


def quantity(field: str, value: object) -> str:
    """A setting's value as people say it."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: ""}[value]
    if field.endswith("_rules") and isinstance(value, dict):
        return ",".join(value)
    if isinstance(value, dict):
        return ",".join(f"{each:g}" if name == "*" else f"{name}={each}" for name, each in value.items())
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if "_bytes" in field and isinstance(value, int):
        return size(value) if value else "0"
    if field.endswith("_seconds"):
        return f"{value:g} s"
    return f"{value:,}" if isinstance(value, int) and value >= 10_000 else str(value)


def default(field: str) -> str:
    """The value of a setting that is not set, or how it is computed."""
    info = fixed(Settings.model_fields[field])
    if info is not None and info.how:
        return info.how
    return quantity(field, Settings.model_fields[field].default)


def allowed_values(field: str) -> str:
    """The allowed values of a setting, with sizes in units and large counts in groups of three digits."""
    text = allowed(field)
    for start in ("a whole number ", "a number ", "from ", "a ", "the path of a "):
        text = text.removeprefix(start)
    text = re.sub(r"^([\d.]+) to (\d+)$", r"\1–\2", text).replace("list with commas", "list")
    if "_bytes" in field:
        return re.sub(r"\d+", lambda match: quantity(field, int(match[0])), text)
    return re.sub(r"\d{5,}", lambda match: f"{int(match[0]):,}", text)


STARTERS = {"beside_triton", "cores", "costs", "hold_without_triton", "model_repository", "triton_alone"}
"""Settings that the chart, Compose and `gateway up` make, in a table of their own."""


def settings() -> str:
    """Every setting, in one table for each section."""
    tables = []
    shown = set(STARTERS)
    for section in reversed(Settings.sections()):
        fields = {name: field for name, field in section.variables().items() if name not in shown}
        shown |= fields.keys()
        rows = [
            (f"`{variable(name)}`", default(name), allowed_values(name), field.description or "")
            for name, field in fields.items()
        ]
        if rows:
            heading = (inspect.getdoc(section) or "").rstrip(".")
            tables.append(f"### {heading}\n\n{table(('variable', 'default', 'allowed', 'meaning'), rows)}")
    fields = Settings.variables()
    rows = [
        (f"`{variable(name)}`", default(name), fields[name].description or "") for name in fields if name in STARTERS
    ]
    tables.append(
        f"### Set by the chart, Compose and `gateway up`\n\n{table(('variable', 'default', 'meaning'), rows)}"
    )
    return "\n\n".join(tables)


def limits() -> str:
    """Every limit that no variable sets, and the code of what is beyond it."""
    fields = Settings.model_fields
    rows = [
        (f"`{name}`", default(name), f"`{limit.error.code}`", fields[name].description or "")
        for name, limit in Settings.limits().items()
        if fixed(fields[name])
    ]
    rows += [
        (
            f"`{name}`",
            size(limit.value) if limit.unit == "bytes" else f"{limit.value:,g} {limit.unit}",
            f"`{limit.error.code}`",
            limit.meaning,
        )
        for name, limit in {**FIXED, **Settings.all_fixed_limits()}.items()
    ]
    return table(("limit", "value", "beyond it", "meaning"), rows)


def error_codes() -> str:
    """Every error code."""
    rows = (
        (f"`{error.code}`", str(int(error.status)), " ".join((inspect.getdoc(error) or "").split()))
        for error in errors_of(installed())
    )
    return table(("code", "status", "meaning"), rows)


def openapi() -> dict[str, Any]:
    """The schema of the service, with the endpoints that need an admin key, which are off by default."""
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as admins:
        print(f"docs:{'0' * 64}", file=admins, flush=True)
        return create_app(Settings(_env_file=None, admin_keys_file=Path(admins.name))).openapi()


def endpoints() -> str:
    """Every endpoint of the OpenAPI page."""
    rows = (
        (f"`{method.upper()} {path}`", operation["summary"])
        for path, operations in openapi()["paths"].items()
        for method, operation in operations.items()
    )
    return table(("endpoint", ""), rows)


def commands() -> str:
    """Every command of `gateway` with its options, the frequent ones first, after those that many commands have."""
    found = dict(leaf_commands(("gateway",), get_command(app)))
    lines = {path: option_lines(command) for path, command in found.items()}
    counts = Counter(line for each in lines.values() for line in each)
    shared = [line for line, count in counts.items() if count > 2]
    add, up = ("gateway", "model", "add"), ("gateway", "up")
    more = [line for line in lines[add] if line in lines[up] and line not in shared]
    lines[up] = [line for line in lines[up] if line not in more] + ["- the options of `gateway model add`, for SOURCE"]
    parts = ["## Options of many commands\n\n" + "\n".join(shared)]
    for path, command in sorted(found.items(), key=lambda item: item[1].hidden):  # those of containers come last
        own = "\n".join(line for line in lines[path] if line not in shared)
        parts.append(f"## {' '.join(path)}\n\n{first_sentence(command)}\n\n{own}".rstrip())
    return "\n\n".join(parts)


def first_sentence(command: Command) -> str:
    """What a command does."""
    return " ".join((command.help or "").split("\n\n")[0].split())


def option_lines(command: Command) -> list[str]:
    """A line for each argument and option of a command; those that its --help leaves out come last."""
    given = [each for each in command.params if not {"--help", "--help-all"}.intersection(each.opts)]
    lines = []
    for each in sorted(given, key=lambda each: getattr(each, "hidden", False)):
        name = each.opts[0] if each.param_type_name == "option" else str(each.name).upper()
        lines.append(f"- `{name}`: {' '.join(str(getattr(each, 'help', None) or '').split())}")
    return lines


def labels(names: Iterable[str]) -> str:
    """Names of labels as in PromQL."""
    return f"{{{','.join(names)}}}" if names else ""


def metric_table() -> str:
    """Every metric of the core, then those of the plug-ins."""
    modules = [metrics, *metrics_of(installed())]
    found = [metric for each in modules for metric in vars(each).values() if isinstance(metric, MetricWrapperBase)]
    rows = (
        (
            f"`{metric._name}{'_total' * (metric._type == 'counter')}{labels(metric._labelnames)}`",
            metric._type,
            metric._documentation,
        )
        for metric in found
    )
    return table(("metric", "type", "meaning"), rows)


def leaf_commands(path: tuple[str, ...], command: Command) -> Iterator[tuple[tuple[str, ...], Command]]:
    """The commands below a group, and a command itself, in the order of `--help`."""
    if not isinstance(command, TyperGroup):
        yield path, command
        return
    for name in command.commands:
        yield from leaf_commands((*path, name), command.get_command(None, name))


TABLES: dict[str, Callable[[], str]] = {
    "endpoints": endpoints,
    "settings": settings,
    "errors": error_codes,
    "limits": limits,
    "commands": commands,
    "metrics": metric_table,
}
"""What writes each table."""
PAGES = {"limits": "settings", "endpoints": "http-api"}
"""The pages of docs/reference/ that have other names than their table."""


def page_of(name: str) -> Path:
    """The page with a table."""
    return REFERENCE / f"{PAGES.get(name, name)}.md"


def with_table(name: str, text: str) -> str:
    """A page's text with its table written anew."""
    place = re.compile(rf"(<!-- table: {name} -->\n).*?(\n<!-- end -->)", re.DOTALL)
    if not place.search(text):
        raise ValueError(f"{page_of(name)} has no place for the table {name}")
    content = TABLES[name]()
    return place.sub(lambda match: match[1] + content + match[2], text)


if __name__ == "__main__":
    if others := [plugin.name for plugin in installed() if not is_ours(plugin.__module__)]:
        sys.exit(f"other plug-ins would get into the tables: {variable('plugins_off')}={','.join(others)} make docs")
    sys.path.insert(0, str(PROJECT))
    from deploy.generate.__main__ import files, rewrite

    for name in TABLES:
        page = page_of(name)
        rewrite(page, with_table(name, page.read_text()))
    for path, content in files():
        rewrite(path, content)
