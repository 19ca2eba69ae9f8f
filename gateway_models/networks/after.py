"""Prepares the step after a network: completes what the user described, writes its folder, and tries it."""

import json
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gateway.values.extras import install
from gateway.values.labels import read_labels
from gateway_client.bulk.outputs import EMBEDDING
from gateway_models.networks.file_kinds import ModelFileError
from gateway_models.networks.functions import CODE, FunctionSource, adapter_of, find_function, write_adapter
from gateway_models.networks.isolation import Job, Report, StepTrial, try_step
from gateway_models.networks.model_source import digest
from gateway_models.repository.after import AfterStep, DeclaredStep, FunctionStep, StepError, Unknown, resolved
from gateway_models.repository.entry import EntryError, Outcome
from gateway_models.repository.spec import ModelSpec

STEP, ADAPTER = "step.json", "served_step.py"
DECLARED, NUMBERS, KNOWN = "declared.py", "declared.json", "known.npy"
MOST_KNOWN = 5_000
"""Known embeddings that are kept, chosen at random but always alike: each image is compared with all of them."""
PROBE_ROWS = 3


@dataclass(frozen=True, slots=True)
class NetworkOutputs:
    """What a step is given: the network's labels, the size of its embeddings (0: none), and its kind of scores."""

    labels: Sequence[str]
    embedding_size: int
    multi_label: bool


def check_step(spec: ModelSpec, outputs: NetworkOutputs) -> AfterStep | None:
    """The step of a spec, completed as far as that is possible without running it; raises UserError."""
    step, labels = spec.after, spec.after_labels
    if step is None:
        if labels is not None:
            raise StepError("labels name the classes of a step that is a Python function: give --postprocess FILE.py")
        return None
    if isinstance(step, FunctionStep):
        source = find_step(step, spec.include)
        step = replace(step, source=source.location, include=source.include, sha256=source.digest())
        return replace(step, labels=read_labels(labels) if labels else step.labels)
    if labels is not None:
        raise StepError("labels are for a step that is a Python function; a declared step has its labels in it")
    if step.unknown and not outputs.embedding_size:
        raise StepError(
            "unknown needs the embeddings of images, and the network gives none: add it with --embeddings auto"
        )
    step = resolved(step, outputs.labels, multi_label=outputs.multi_label)
    if step.unknown:
        path = step.unknown.embeddings
        if not path.is_file():
            raise StepError(f"there is no file {path} with the embeddings of known images")
        step = replace(step, unknown=replace(step.unknown, sha256=step.unknown.sha256 or digest(path)))
    return step


def find_step(step: FunctionStep, include: Sequence[Path] = ()) -> FunctionSource:
    """The function's file and those that it needs; FILE.py alone is enough if it has one function. Raises UserError."""
    text = step.source
    if text.endswith(".py"):
        from gateway_models.networks.functions import offered

        names = offered(Path(text).expanduser())
        text = f"{text}:{names[0]}" if len(names) == 1 else text
    return find_function(text, step.include or include)


def write_step(step: AfterStep, outputs: NetworkOutputs, folder: Path) -> None:
    """Write a completed step's folder for Triton; raises UserError if its files have changed since it was completed."""
    folder.mkdir(parents=True, exist_ok=True)
    write_adapter("after", ADAPTER, folder)
    if isinstance(step, FunctionStep):
        source = find_step(step)
        if source.digest() != step.sha256:
            raise EntryError(
                f"{source.path}, or a file that it needs, has changed since it was added: add it as a new version with "
                "`gateway model postprocess`"
            )
        source.copy_code(folder)
        _write_config(folder, source.path.stem, source.name, outputs, len(step.labels or outputs.labels))
        return
    code = folder / CODE
    code.mkdir()
    (code / DECLARED).write_text((files("gateway_models.repository") / "templates" / "after" / DECLARED).read_text())
    nearest = _write_known(step.unknown, outputs.embedding_size, code) if step.unknown else None
    (code / NUMBERS).write_text(json.dumps(_numbers(step, nearest, multi_label=outputs.multi_label)) + "\n")
    function = "scores_and_refusals" if step.unknown else "scores_of"
    _write_config(folder, Path(DECLARED).stem, function, outputs, len(step.labels or outputs.labels))


def trial_of(step: FunctionStep, spec: ModelSpec, outputs: NetworkOutputs, folder: Path, report: Report) -> StepTrial:
    """Run a function on made-up scores in a process of its own; raises UserError with the reason if it fails."""
    report(f"trying the step {step.described()}")
    return try_step(Job(replace(spec, after=step, source=step.source), "", len(outputs.labels), folder), report)


def completed_step(
    step: AfterStep, spec: ModelSpec, outputs: NetworkOutputs, folder: Path, report: Report
) -> AfterStep:
    """Write a checked step's folder and, if it is a function, try it; raises UserError."""
    write_step(step, outputs, folder)
    if isinstance(step, FunctionStep):
        step = replace(step, takes_embeddings=trial_of(step, spec, outputs, folder, report).takes_embeddings)
    return step


def outputs_of(spec: ModelSpec, outcome: Outcome, labels: Sequence[str]) -> NetworkOutputs:
    """What the network of a version gives."""
    return NetworkOutputs(labels, outcome.embedding_size, spec.multi_label)


def do_step(job: Job) -> StepTrial:
    """Try the step in a job's folder on made-up scores; raises ModelFileError."""
    config = json.loads((job.folder / STEP).read_text())
    adapter = adapter_of(job.folder, ADAPTER)
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=3, size=(PROBE_ROWS, config["classes"]))
    scores = (np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)).astype(np.float32)
    # The network's scores of an image that it is sure of.
    scores[-1] = np.eye(1, config["classes"], dtype=np.float32)
    embeddings = rng.normal(size=(PROBE_ROWS, config["size"])).astype(np.float32)
    try:
        step = adapter.ServedStep(job.folder)
        together = step(scores, embeddings if step.takes_embeddings else None)
        alone = [
            step(scores[[row]], embeddings[[row]] if step.takes_embeddings else None)[0] for row in range(PROBE_ROWS)
        ]
    except adapter.UserCodeError as exc:
        raise ModelFileError(str(exc)) from exc
    except (Exception, SystemExit) as exc:
        traceback.print_exc()
        raise ModelFileError(
            f"on made-up scores, float32 {list(scores.shape)}, it failed with {adapter.described(exc)}"
        ) from exc
    if not np.allclose(together, np.stack(alone), rtol=1e-3, atol=1e-5):
        raise ModelFileError("an image's scores depend on the other images of the batch: each row must be its own")
    return StepTrial(together.shape[1], takes_embeddings=step.takes_embeddings)


def load_step(folder: Path) -> tuple[Callable[[Tensor], Tensor], Callable[[BaseException], str]]:
    """The step of a folder as a function of rows [N, classes + size], and how its errors are described."""
    adapter = adapter_of(folder, ADAPTER)
    try:
        step = adapter.ServedStep(folder)
    except adapter.UserCodeError as exc:
        raise ModelFileError(str(exc)) from exc
    return lambda rows: torch.from_numpy(step.of_rows(rows.numpy())), adapter.described


def _write_config(folder: Path, module: str, function: str, outputs: NetworkOutputs, own_classes: int) -> None:
    config = {
        "module": module,
        "callable": function,
        "classes": len(outputs.labels),
        "size": outputs.embedding_size,
        "own_classes": own_classes,
    }
    (folder / STEP).write_text(json.dumps(config, indent=2) + "\n")


def _numbers(step: DeclaredStep, nearest: float | None, *, multi_label: bool) -> dict[str, Any]:
    """declared.json; see templates/after/declared.py."""
    parents = {each.label: each.parent for each in step.classes}

    def above(label: str) -> list[str]:
        found = []
        while label := parents[label]:
            found.append(label)
        return found

    inner = [
        {
            "depth": len(above(each.label)),
            "leaves": [number for number, leaf in enumerate(step.leaves) if each.label in above(leaf.label)],
        }
        for each in step.inner
    ]
    return {
        "multi_label": multi_label,
        "temperature": step.temperature,
        "bias": list(step.bias),
        "threshold": step.threshold,
        "leaves": [list(each.numbers) for each in step.leaves],
        "inner": inner,
        "has_other": bool(step.other),
        "nearest": nearest,
    }


def _write_known(unknown: Unknown, size: int, code: Path) -> float:
    """Write known.npy, unit vectors, and return the cosine that the nearest of them must have; raises UserError.

    The images of which a share, `keep`, has a known neighbour as near as that are those of the file themselves. The
    nearest neighbour in the space of embeddings separates known from unknown images (Y. Sun et al., Out-of-Distribution
    Detection with Deep Nearest Neighbors, ICML 2022).
    """
    path = unknown.embeddings
    if not path.is_file() or digest(path) != unknown.sha256:
        raise EntryError(f"{path} does not exist any more, or has changed since it was added: add it as a new version")
    vectors = _read_embeddings(path)
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiu":
        raise StepError(
            f"{path} must have numbers [images, {size}], or rows with an `embedding` as gateway classify --embeddings "
            "writes them"
        )
    if vectors.shape[1] != size:
        raise StepError(f"{path} has embeddings of {vectors.shape[1]} numbers, and the network gives {size}")
    if len(vectors) < 2 or not np.isfinite(vectors).all():
        raise StepError(f"{path} must have the embeddings of at least 2 images, without NaN; some hundreds are better")
    if len(vectors) > MOST_KNOWN:
        vectors = vectors[np.sort(np.random.default_rng(0).choice(len(vectors), MOST_KNOWN, replace=False))]
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    known = (vectors / np.maximum(lengths, np.finfo(np.float32).tiny)).astype(np.float32)
    np.save(code / KNOWN, known)
    nearest = [float(np.max(np.delete(known @ row, number))) for number, row in enumerate(known)]
    return float(np.quantile(nearest, 1 - unknown.keep))


def _read_embeddings(path: Path) -> NDArray[Any]:
    """The array of an .npy file, or the embeddings of rows that gateway classify wrote; raises StepError."""
    try:
        if path.suffix == ".parquet":
            from pyarrow.parquet import read_table

            rows = read_table(path, columns=[EMBEDDING]).column(EMBEDDING).to_pylist()
        elif path.suffix == ".jsonl":
            with path.open(encoding="utf-8-sig") as lines:  # it may be larger than a text that is read as a whole
                rows = [json.loads(line).get(EMBEDDING) for line in lines if line.strip()]
        else:
            array: NDArray[Any] = np.load(path, allow_pickle=False)
            return array
        # Files that could not be read have none.
        return np.array([row for row in rows if row is not None])
    except ImportError as exc:
        raise StepError(f"{path} needs pyarrow: {install('log')}") from exc
    except (OSError, ValueError, EOFError, AttributeError, KeyError) as exc:
        raise StepError(f"{path} has no embeddings: {exc}") from exc
