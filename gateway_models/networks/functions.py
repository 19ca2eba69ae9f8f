"""Python functions as models and steps: FILE.py:NAME, its files, and the folder from which Triton runs them."""

import hashlib
import importlib.util
import json
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from gateway_client.files import files_below
from gateway_models.networks.errors import ModelError

CONFIG, CODE, MODEL = "served.json", "code", "model.py"
ADAPTER, SERVED_CODE = "served.py", "served_code.py"
TEMPLATES = Path(str(files("gateway_models.repository"))) / "templates"
_SOURCE = re.compile(r"(?P<path>.+\.py)(:(?P<name>[^:/]*))?")


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """A callable in a file, and the files and folders that it needs."""

    path: Path
    name: str
    include: tuple[Path, ...] = ()

    @property
    def location(self) -> str:
        """FILE.py:NAME with the absolute path."""
        return f"{self.path}:{self.name}"

    def digest(self) -> str:
        """The SHA-256 over the names and contents of all files."""
        hasher = hashlib.sha256()
        for target, path in sorted(self._files().items()):
            hasher.update(f"{target}\0{path.stat().st_size}\0".encode() + path.read_bytes())
        return hasher.hexdigest()

    def stage(self, kind: str, folder: Path, **config: object) -> None:
        """Write a folder for Triton: its model.py, the adapter of the kind (function, after), code/ and served.json."""
        for path in (TEMPLATES / MODEL, TEMPLATES / kind / ADAPTER, TEMPLATES / SERVED_CODE):
            (folder / path.name).write_text(path.read_text())
        (folder / CONFIG).write_text("{}")
        configure(folder, module=self.path.stem, callable=self.name, **config)
        for target, path in self._files().items():
            copy = folder / CODE / target
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)

    def _files(self) -> dict[str, Path]:
        """The path in code/ and the source path of each file; raises ModelError."""
        found = {self.path.name: self.path}
        for include in self.include:
            if not include.exists():
                raise ModelError(f"--include names {include}, which does not exist")
            for path in files_below(include) if include.is_dir() else [include]:
                if "__pycache__" not in path.parts:
                    found[str(path.relative_to(include.parent))] = path
        return found


def configure(folder: Path, **values: object) -> None:
    """Write values into served.json, which has what the adapter needs to call the code."""
    known = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**known, **values}, indent=2) + "\n")


def is_function(text: str) -> bool:
    """Whether a SOURCE is a Python file, or a callable in one."""
    return _SOURCE.fullmatch(text) is not None


def find_function(text: str, include: Sequence[Path] = ()) -> FunctionSource:
    """Parse FILE.py:NAME without running the file; raises ModelError."""
    match = _SOURCE.fullmatch(text)
    assert match is not None
    path = Path(match["path"]).expanduser().absolute()
    if not path.is_file():
        raise ModelError(f"there is no file {path}")
    if not match["name"]:
        raise ModelError(f"which of its functions is it? Use {path.name}:NAME")
    return FunctionSource(path, match["name"], tuple(each.expanduser().absolute() for each in include))


def adapter_of(folder: Path) -> Any:  # noqa: ANN401  # a module
    """The adapter's copy in a staged folder, so that checks run the same code as Triton."""
    modules = []
    for each in (SERVED_CODE, ADAPTER):
        spec = importlib.util.spec_from_file_location(Path(each).stem, folder / each)
        assert spec is not None
        assert spec.loader is not None
        modules.append(importlib.util.module_from_spec(spec))
        sys.modules[Path(SERVED_CODE).stem] = modules[0]  # where the adapter imports it
        spec.loader.exec_module(modules[-1])
    return modules[-1]


def load_staged(folder: Path) -> tuple[Any, Any]:
    """The code in a folder that FunctionSource.stage wrote, and its adapter module; raises ModelError.

    This executes the user's code: only the processes of `jobs` call it.
    """
    adapter = adapter_of(folder)
    try:
        return adapter.Served(folder), adapter
    except adapter.UserCodeError as exc:
        raise ModelError(str(exc)) from exc
