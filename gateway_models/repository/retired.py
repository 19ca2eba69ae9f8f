"""The numbers of removed versions, which are never reused.

The key of Triton's response cache is the model's name, its version and the request, and entries outlive an unloaded
model. A new network under a used number would get the cached answers of the old one.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from gateway.values.files import whole_file
from gateway.values.validation import first_fault
from gateway_models.repository.entry import EntryError

FILE = "retired.json"
_NUMBERS = TypeAdapter(dict[str, list[int]])


def retired(repository: Path, name: str) -> frozenset[int]:
    """The numbers of a model's removed versions; raises EntryError."""
    return frozenset(_read(repository).get(name, ()))


def next_version(repository: Path, name: str, versions: Iterable[int] = ()) -> int:
    """The number after a model's present and removed versions; raises EntryError."""
    return max({*versions, *retired(repository, name)}, default=0) + 1


def retire(repository: Path, name: str, *versions: int) -> None:
    """Record the numbers of removed versions; raises EntryError."""
    known = _read(repository)
    known[name] = sorted({*known.get(name, ()), *versions})
    with whole_file(repository / FILE) as draft:
        draft.write_text(json.dumps(known, indent=2) + "\n")


def _read(repository: Path) -> dict[str, list[int]]:
    path = repository / FILE
    try:
        return _NUMBERS.validate_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValidationError as exc:
        raise EntryError(f"cannot read {path}: {first_fault(exc)}") from exc
    except OSError as exc:
        raise EntryError(f"cannot read {path}: {exc}") from exc
