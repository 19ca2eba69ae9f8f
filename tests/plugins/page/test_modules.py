"""The page's JavaScript modules import one way, as the packages do."""

import re
from graphlib import TopologicalSorter

from tests.processes import PROJECT

STATIC = PROJECT / "gateway_plugins" / "page" / "static"
IMPORT = re.compile(r'^import .* from "\./([\w.]+)";$', re.MULTILINE)


def test_modules_import_no_circle():
    imports = {path.name: set(IMPORT.findall(path.read_text())) for path in STATIC.glob("*.js")}
    order = list(TopologicalSorter(imports).static_order())  # raises CycleError, which names the modules
    assert order.index("service.js") < order.index("feedback.js") < order.index("page.js")
