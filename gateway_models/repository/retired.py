"""Numbers of versions that were removed: none is given twice.

Triton's response cache knows an answer by the model's name, its version and the request, and keeps it when the model is
unloaded. A network that came under a number of old would be taken for the one before.
"""

import json
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from gateway_models.repository.entry import EntryError, first_fault

FILE = "retired.json"
_NUMBERS = TypeAdapter(dict[str, list[int]])


def retired(repository: Path, name: str) -> frozenset[int]:
    """The numbers that a model's name has had and no longer has; raises EntryError."""
    return frozenset(_read(repository).get(name, ()))


def retire(repository: Path, name: str, *versions: int) -> None:
    """Remember numbers that are removed; raises EntryError."""
    known = _read(repository)
    known[name] = sorted({*known.get(name, ()), *versions})
    (repository / FILE).write_text(json.dumps(known, indent=2) + "\n")


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
