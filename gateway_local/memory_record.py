"""The memory of the models' processes as measured on this machine, kept in the cache folder."""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway.files.shared import whole_file
from gateway.triton.footprint import Footprint, Need, need, version_files
from gateway.triton.model_config import ModelConfig
from gateway.triton.model_processes import model_processes

FORMAT = 1
RECORD = "memory.json"
"""The file of `record` in the cache folder."""


def measured_need(
    repository: Path, configs: Mapping[str, ModelConfig], known: Mapping[str, Any], *, gpus: int = 0
) -> Need:
    """What the models of a repository need: measured if `known` has the same files, otherwise estimated.

    `known` is what `recorded` returned.
    """
    estimates = need(repository, configs, gpus=gpus).footprints
    return Need.of(_measured(each, repository / each.model, known) for each in estimates)


def _measured(estimate: Footprint, folder: Path, known: Mapping[str, Any]) -> Footprint:
    entry = known.get(str(folder.resolve()))
    if not entry or entry["fingerprint"] != fingerprint(folder):
        return estimate
    return replace(estimate, least_bytes=entry["loaded_bytes"], usual_bytes=entry["peak_bytes"], measured=True)


def measure(server_pid: int) -> dict[str, tuple[int, int]]:
    """The private memory of each model's processes, now and at its peak, in bytes, by the model's folder.

    For a model with several processes, the largest values.
    """
    found: dict[str, tuple[int, int]] = {}
    for process in model_processes(_children(server_pid)):
        model = str(process.folder)
        now, peak = found.get(model, (0, 0))
        found[model] = (max(now, process.own_bytes), max(peak, process.peak_bytes))
    return found


def _children(pid: int) -> Iterable[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            yield from map(int, task.read_text().split())
        except OSError:
            continue


def fingerprint(folder: Path) -> str:
    """Changes with the files of a model's versions."""
    stats = [(str(path.relative_to(folder)), path.stat()) for path in version_files(folder)]
    return hashlib.sha256(repr([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]).encode()).hexdigest()


def recorded(path: Path) -> dict[str, Any]:
    """The measurements on this machine, by the model's folder; {} if there are none."""
    try:
        document = json.loads(path.read_bytes())
        return dict(document["models"]) if document["format"] == FORMAT else {}
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def record(path: Path, measured: Mapping[str, tuple[int, int]]) -> None:
    """Store measurements; earlier peaks of models with the same files stay. Never raises OSError."""
    known = recorded(path)
    for model, (now, peak) in measured.items():
        mark = fingerprint(Path(model))
        before = known.get(model, {})
        same = before.get("fingerprint") == mark
        known[model] = {
            "fingerprint": mark,
            "loaded_bytes": min(now, before["loaded_bytes"]) if same else now,
            "peak_bytes": max(peak, before["peak_bytes"]) if same else peak,
        }
    known = {model: entry for model, entry in known.items() if Path(model).is_dir()}
    # Without the record, the next start uses estimates.
    with contextlib.suppress(OSError), whole_file(path) as draft:
        draft.write_text(json.dumps({"format": FORMAT, "models": known}, indent=2) + "\n")
