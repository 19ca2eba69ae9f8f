"""`gateway model drift`: the reference of a comparison, from a folder of images, and its stored form."""

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from gateway.decoder.in_process import inspect_whole
from gateway.environment import load_settings
from gateway.errors import ImageError
from gateway.ingest.upload import Limits
from gateway_client.files import read_file
from gateway_models.predictions.drift import FORMAT, MOST_IMAGES, PIXELS, WindowSample, reference_of
from gateway_models.predictions.live_drift import CLASS, ENTROPY, SCORE
from gateway_models.predictions.service_log import LOGGED_CLASSES, entropy
from gateway_models.proof.dataset import Sample
from gateway_models.proof.evaluate import SampleAnswer, SampleAnswers
from gateway_models.proof.image_files import NotCompared, image_files
from gateway_models.repository.entry import Entry
from gateway_models.repository.writing import rewrite


def chosen_samples(folder: Path, most: int = MOST_IMAGES) -> list[Sample]:
    """The images of a folder and its subfolders, at most `most`, chosen at random but always alike; raises NoImages."""
    files = image_files([folder])
    chosen = files if len(files) <= most else sorted(random.Random(0).sample(files, most))  # noqa: S311  # no secret
    return [Sample(path, frozenset()) for path in chosen]


def described(
    results: Iterable[SampleAnswers | NotCompared], *, multi_label: bool
) -> Iterator[Mapping[str, object] | NotCompared]:
    """The properties that the log would have for each image, from the answers of `predict_each`."""
    limits = Limits.from_settings(load_settings())
    for answers in results:
        if isinstance(answers, NotCompared):
            yield answers
            continue
        (answer,) = answers
        try:
            yield _properties(answer, limits, multi_label=multi_label)
        except (ImageError, OSError) as exc:
            yield NotCompared(answer.sample.path, str(exc))


def store(entry: Entry, version: int, sample: WindowSample, repository: Path) -> None:
    """Store a sample as the reference of a version, in the configuration of its ensemble; raises UserError, OSError."""
    changed = replace(entry.versions[version], drift_reference=reference_of(sample).text())
    rewrite(replace(entry, versions={**entry.versions, version: changed}), repository)


def _properties(answer: SampleAnswer, limits: Limits, *, multi_label: bool) -> dict[str, object]:
    info, scores = inspect_whole(read_file(answer.sample.path, limits.max_file_bytes), limits), answer.probabilities
    best = np.argsort(scores)[::-1][:LOGGED_CLASSES]
    top: list[float] = scores[best].astype(np.float64).tolist()
    return {
        SCORE: top[0],
        ENTROPY: entropy(top, multi_label=multi_label),
        PIXELS: info.width * info.height,
        CLASS: str(int(best[0])),
        FORMAT: info.format.value,
    }
