"""Imports of torch, and of other slow packages, wait until the first test that needs them runs.

Each worker of a run collects every test, and runs a share. While it collects, the packages of `HEAVY` and the
modules of this project that import them are `Postponed`. So are the names that a test module imports from them, and
the constants and parameters that it makes by calling them. Before the first test of a module, its globals become
the real objects. Inside a container, an object or a class they stay postponed, and fail the test that uses them.
No class can be derived from a postponed one, so tests' networks are in separate modules.
"""

import gc
import importlib
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parents[1]
PACKAGES = ("bench", "gateway_models", "tests")
"""Packages of this project with modules that import torch."""
HEAVY = ("torch", "torchvision", "onnx", "onnxruntime", "sklearn", "skimage", "scipy", "matplotlib", "jsonschema")
HEAVY += ("efficientnet_lite_pytorch", "timm", "transformers", "ultralytics", "keras", "safetensors")
"""Packages that take a second or more to import."""
IMPORT = re.compile(r"^\s*(?:import\s+([\w., ]+)|from\s+([\w.]+)\s+import\s+(\([^)]*\)|[^\n]+))", re.MULTILINE)
AT_IMPORT = re.compile(IMPORT.pattern.replace(r"^\s*", "^"), re.MULTILINE)
"""The imports outside of functions and conditions."""
ROOT_FIXTURES = "tests/conftest.py"


def imported(source: str, pattern: re.Pattern[str] = IMPORT) -> set[str]:
    """The names of the modules that a module may import, anywhere in it: in `from a import b`, both `a` and `a.b`."""
    names = set()
    for plain, package, members in pattern.findall(source):
        names |= {each.split()[0] for each in plain.split(",") if each.strip()}
        if package:
            names |= {package, *(f"{package}.{name}" for name in re.findall(r"\w+", members))}
    return names


def module_name(path: str) -> str:
    """The name by which the file at a path is imported."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def heavy(sources: dict[str, str]) -> set[str]:
    """The Python texts, by path, whose import needs a package of HEAVY; a folder uses its conftest.py."""
    users: dict[str, set[str]] = defaultdict(set)
    for path, source in sources.items():
        for name in imported(source, AT_IMPORT):
            users[name.partition(".")[0] if name.partition(".")[0] in HEAVY else name].add(path)
        if path.endswith("/conftest.py") and path != ROOT_FIXTURES:
            folder = path.removesuffix("conftest.py")
            users[module_name(path)].update(each for each in sources if each.startswith(folder))
    found: set[str] = set()
    level = set().union(*(users[package] for package in HEAVY))
    while level := level - found:
        found |= level
        level = set().union(*(users[module_name(path)] for path in level - {ROOT_FIXTURES}))
    return found


class Postponed(ModuleType):
    """A module that is not imported yet, a name in it, or the result of a call of one."""

    def __init__(self, name: str, value: Callable[[], Any]) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self._value = value

    def __getattr__(self, name: str) -> "Postponed":
        if name.startswith("_"):
            raise AttributeError(f"{self} is imported when a test runs, so it has no {name} yet")
        self._is_collected()
        return Postponed(f"{self.__name__}.{name}", lambda: _member(evaluated(self), name))

    def __call__(self, *arguments: Any, **named: Any) -> "Postponed":
        self._is_collected()
        return Postponed(f"{self.__name__}()", lambda: evaluated(self)(*evaluated(arguments), **evaluated(named)))

    def __bool__(self) -> bool:
        raise TypeError(f"{self} is imported when a test runs, so whether it is true is not known yet")

    def __eq__(self, other: object) -> bool:
        return self is other or bool(self)

    __hash__ = ModuleType.__hash__

    def _is_collected(self) -> None:
        """Raise TypeError in a test: a name that is still postponed there stays so."""
        if _finder not in sys.meta_path:
            raise TypeError(f"{self} was imported while tests were collected: make what contains it within functions")

    def __repr__(self) -> str:
        return self.__name__


def _member(owner: Any, name: str) -> Any:
    if isinstance(owner, ModuleType) and not hasattr(owner, name):
        return _imported(f"{owner.__name__}.{name}")
    return getattr(owner, name)


def evaluated(value: Any) -> Any:
    """A value, or a container of values, with the real objects instead of postponed ones."""
    if isinstance(value, Postponed):
        return value._value()
    if type(value) in (list, tuple, set):
        return type(value)(map(evaluated, value))
    return {key: evaluated(each) for key, each in value.items()} if type(value) is dict else value


def _imported(name: str) -> ModuleType:
    """A module, without the garbage collection that doubles the time of an import."""
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.enable()
        _use_one_thread()


def _use_one_thread() -> None:
    """Where torch is imported: with more threads, it would wait for Triton's and for the networks' processes."""
    if set_threads := getattr(sys.modules.get("torch"), "set_num_threads", None):
        set_threads(1)


class _Postponing(Loader, MetaPathFinder):
    """Finds a postponed module in place of one that takes long to import."""

    def __init__(self) -> None:
        files = (path for package in PACKAGES for path in (PROJECT / package).rglob("*.py"))
        sources = {str(path.relative_to(PROJECT)): path.read_text() for path in files}
        self._heavy = {module_name(path) for path in heavy(sources) if "/test_" not in path}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._heavy and fullname.partition(".")[0] not in HEAVY:
            return None
        within = isinstance(sys.modules.get(fullname.rpartition(".")[0]), Postponed)
        if not within and PathFinder.find_spec(fullname, path) is None:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Postponed(spec.name, lambda: _imported(spec.name))

    def exec_module(self, module: ModuleType) -> None:
        pass


_finder = _Postponing()


def refusals() -> list[str]:
    """Modules that were imported during collection, and must not be."""
    return [f"{name} is imported" for name in HEAVY if name in sys.modules] + [
        f"{name} imports {value!r}: import it within functions"
        for name, module in sys.modules.items()
        if not name.rpartition(".")[2].startswith("test_")
        for value in vars(module).values()
        if isinstance(value, Postponed)
    ]


def pytest_collection() -> None:
    """Postpone, from now on."""
    sys.meta_path.insert(0, _finder)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Import as usual again; names that a test has imported stay postponed until it runs."""
    if _finder not in sys.meta_path:  # in the process that starts the workers
        return
    sys.meta_path.remove(_finder)
    for name, module in list(sys.modules.items()):
        if isinstance(module, Postponed):
            del sys.modules[name]
            package, _, own = name.rpartition(".")
            if vars(sys.modules.get(package, session)).get(own) is module:
                delattr(sys.modules[package], own)
    if found := refusals():
        raise pytest.UsageError("while tests are collected, " + "; ".join(found))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Import the postponed modules of the test's module."""
    _use_one_thread()  # a fixture may have imported torch
    if isinstance(item, pytest.Function):
        names = vars(item.module)
        names.update({name: evaluated(value) for name, value in names.items() if isinstance(value, Postponed)})
        if hasattr(item, "callspec"):
            item.callspec.params.update(evaluated(item.callspec.params))
