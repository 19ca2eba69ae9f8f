"""Prepares a post-processing step: completes the user's description, writes its folder, and tries it."""

import json
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from gateway.values.labels import read_labels
from gateway_models.networks.errors import ModelError
from gateway_models.networks.functions import CODE, CONFIG, TEMPLATES, FunctionSource, find_function, load_staged
from gateway_models.networks.isolation import Job, Report, Task, work
from gateway_models.repository.after import AfterStep, DeclaredStep, FunctionStep, StepError, resolved
from gateway_models.repository.entry import EntryError, Outcome
from gateway_models.repository.spec import ModelSpec

DECLARED, NUMBERS = FunctionSource(TEMPLATES / "after" / "declared.py", "scores_of"), "declared.json"
PROBE_ROWS = 3


def check_step(
    step: AfterStep, classes: Sequence[str], labels: Path | None, include: Sequence[Path], *, multi_label: bool
) -> AfterStep:
    """The step, completed as far as that is possible without running it; raises UserError.

    `classes` are the network's labels, `labels` and `include` the files of a function.
    """
    if isinstance(step, FunctionStep):
        source = find_function(step.source, include)
        own = read_labels(labels) if labels else step.labels
        return replace(step, source=source.location, include=source.include, sha256=source.digest(), labels=own)
    if labels is not None:
        raise StepError("labels are for a step that is a Python function; a declared step has its labels in it")
    return resolved(step, classes, multi_label=multi_label)


def write_step(spec: ModelSpec, outcome: Outcome, folder: Path) -> None:
    """Write the folder of a spec's completed step for Triton; raises UserError if its files have changed since."""
    step = spec.after
    assert step is not None
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(step, FunctionStep):
        source = find_function(step.source, step.include)
        if source.digest() != step.sha256:
            raise EntryError(
                f"{source.path}, or a file that it needs, has changed since it was added: add it as a new version with "
                "`gateway model postprocess`"
            )
    else:
        source = DECLARED
    sizes = {"classes": outcome.classes, "size": outcome.embedding_size}
    source.stage("after", folder, **sizes, own_classes=len(step.labels) or outcome.classes)
    if isinstance(step, DeclaredStep):
        (folder / CODE / NUMBERS).write_text(json.dumps(_numbers(step, multi_label=spec.multi_label)) + "\n")


def completed_step(spec: ModelSpec, outcome: Outcome, folder: Path, report: Report) -> AfterStep:
    """Write the folder of a spec's checked step, and try a function; raises UserError."""
    step = spec.after
    assert step is not None
    write_step(spec, outcome, folder)
    if isinstance(step, FunctionStep):
        report(f"trying the step {step.described()}")
        job = Job(replace(spec, source=step.source), "", outcome.classes, folder, Task.STEP)
        return replace(step, takes_embeddings=work(job, report, TypeAdapter(bool)))
    return step


def do_step(job: Job) -> bool:
    """Try the step in a job's folder on made-up scores; whether it takes embeddings. Raises ModelError."""
    step, adapter = load_staged(job.folder)
    config = json.loads((job.folder / CONFIG).read_text())
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=3, size=(PROBE_ROWS, config["classes"]))
    scores = (np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)).astype(np.float32)
    # The network's scores of an image that it is sure of.
    scores[-1] = np.eye(1, config["classes"], dtype=np.float32)
    embeddings = rng.normal(size=(PROBE_ROWS, config["size"])).astype(np.float32)
    try:
        together = step(scores, embeddings if step.takes_embeddings else None)
        alone = [
            step(scores[[row]], embeddings[[row]] if step.takes_embeddings else None)[0] for row in range(PROBE_ROWS)
        ]
    except adapter.UserCodeError as exc:
        raise ModelError(str(exc)) from exc
    except (Exception, SystemExit) as exc:
        traceback.print_exc()
        raise ModelError(
            f"on made-up scores, float32 {list(scores.shape)}, it failed with {adapter.described(exc)}"
        ) from exc
    if not np.allclose(together, np.stack(alone), rtol=1e-3, atol=1e-5):
        raise ModelError("an image's scores depend on the other images of the batch: each row must be its own")
    takes_embeddings: bool = step.takes_embeddings
    return takes_embeddings


def _numbers(step: DeclaredStep, *, multi_label: bool) -> dict[str, Any]:
    """declared.json; see templates/after/declared.py."""
    return {
        "multi_label": multi_label,
        "temperature": step.temperature,
        "bias": list(step.bias),
        "threshold": step.threshold,
        "classes": [list(each.numbers) for each in step.classes],
        "has_other": bool(step.other),
    }
