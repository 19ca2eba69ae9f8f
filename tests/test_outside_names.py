"""Names from outside become a SafePath before they are joined to a folder."""

import ast

from tests.processes import PACKAGES
from tests.processes import PROJECT as ROOT

SOURCES = {"tarfile", "zipfile", "fsspec", "huggingface_hub"}
"""Modules of Python and of libraries that give names from outside."""
OTHERS = (
    "gateway_local/doctor/repository.py",
    "gateway_models/repository/entry.py",
    "gateway/plugins/page/model_examples.py",
    "gateway_models/predictions/forget.py",
    "gateway_models/predictions/labels.py",
    "gateway_models/predictions/layout.py",
    "gateway_models/predictions/reader.py",
)
"""Modules that get such names from a file's content: an entry's record, a log's rows."""
_ENTRY = "read_entry has checked the names of an entry's folders"
ALLOWED = {
    "gateway_local/doctor/repository.py": {
        "repository / name": "a folder that was listed",
    },
    "gateway_models/networks/hub.py": {
        "path / name": "one of two names",
    },
    "gateway_models/networks/converters.py": {
        "Path(folder) / f\"model{('.keras' if zipfile.is_zipfile(path) else '.h5')}\"": "one of two names",
    },
    "gateway_models/repository/bucket.py": {
        "self.folder / name": "a folder that was listed",
    },
    "gateway_models/repository/entry.py": {
        "repository / entry.name": _ENTRY,
        "repository / name": "the user's option, or a folder that was listed",
        "repository / self.classifier": _ENTRY,
        "repository / self.classifier / str(self.network_of(version))": _ENTRY,
        "repository / self.classifier / str(self.network_of(version)) / self.format.filename": "one of a few names",
        "repository / (self.step_after(version) if has_own else self.classifier)": _ENTRY,
    },
    "gateway/plugins/page/model_examples.py": {
        "folder / entry.file": "a name of _FILE",
        "repository / model_name": "a name of _MODEL",
    },
}
"""Joins with other values, by module, with the reason why no such name comes from outside."""


def handlers() -> list[str]:
    """The modules that handle names from outside."""
    found = set(OTHERS)
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            tree = ast.parse(path.read_text())
            names = {each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names}
            names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
            if SOURCES & {name.partition(".")[0] for name in names}:
                found.add(path.relative_to(ROOT).as_posix())
    return sorted(found)


def joins(tree: ast.AST) -> list[str]:
    """The joins of a path with anything but a constant or a name that SafePath has checked."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and not is_known(node.right):
            found.append(ast.unparse(node))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name in {"joinpath", "with_name", "extract", "extractall"}:
                found.append(ast.unparse(node))
            if name == "join" and ast.unparse(node.func.value).endswith("path"):
                found.append(ast.unparse(node))
    return found


def is_known(node: ast.expr) -> bool:
    """Whether the right side of a / is a constant, a number, or checked where it stands."""
    match node:
        case ast.Constant() | ast.BinOp(op=ast.Pow()):
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.isupper()
        case ast.Call(func=ast.Name(id="SafePath" | "safe_name" | "float")):
            return True
    return False


def test_every_join_is_checked():
    """For a name from outside use SafePath(name).below(folder); for another value add it to ALLOWED with a reason."""
    found = {module: set(joins(ast.parse((ROOT / module).read_text()))) for module in handlers()}
    assert len(found) > 10
    assert {module: new for module, each in found.items() if (new := each - ALLOWED.get(module, {}).keys())} == {}


def test_no_reason_is_left_over():
    for module, reasons in ALLOWED.items():
        assert reasons.keys() <= set(joins(ast.parse((ROOT / module).read_text()))), module
