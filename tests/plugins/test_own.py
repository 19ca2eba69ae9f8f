"""The plug-ins of this repository, and the lists that name them and the hooks."""

import inspect
import re
import tomllib

import pytest

from gateway import hooks
from gateway.plugins import installed
from tests.processes import PROJECT

FOLDERS = sorted(path.parent.name for path in (PROJECT / "gateway_plugins").glob("*/plugin.py"))
ENTRY_POINTS = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["entry-points"][hooks.GROUP]
HOOKS = {name for name in vars(hooks.Plugin) if not name.startswith("_")} - {"idle_hooks"}


@pytest.mark.parametrize("folder", FOLDERS)
def test_plugin_is_installed_and_listed(folder):
    module = f"gateway_plugins.{folder}.plugin"
    modules = {target.partition(":")[0] for target in ENTRY_POINTS.values()}
    assert module in modules, f"add the entry point {folder} of {module} to pyproject.toml, then: pip install -e ."
    assert module in {kind.__module__ for kind in installed()}, "the entry point is not installed: pip install -e ."
    rows = re.findall(r"^\| `(\w+)/` \|", (PROJECT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    assert folder in rows, f"add {folder}/ to the table of plug-ins in ARCHITECTURE.md"


def test_hooks_are_listed():
    listed = re.findall(r"^    ([a-z_]+(?:, [a-z_]+)*)  ", inspect.getdoc(hooks) or "", re.MULTILINE)
    names = {name for cell in listed for name in cell.split(", ")} - {"hook"}
    assert names == HOOKS, "each hook has a line in the table at the top of gateway/hooks.py"
