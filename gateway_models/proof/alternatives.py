"""`gateway model evaluate --compare`: alternative preprocessing of a model, on the same labelled images."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gateway.ingest.resizing import PILLOW, TORCH
from gateway_local.config_text import with_parameter
from gateway_models.networks.isolation import Report
from gateway_models.proof.dataset import Sample
from gateway_models.proof.evaluate import Evaluation, evaluate
from gateway_models.proof.image_files import resize_for
from gateway_models.proof.serving import serving
from gateway_models.repository.entry import Entry
from gateway_models.repository.spec import Decode

RESIZE_PARAMETER = "resize_library"


@dataclass(frozen=True, slots=True)
class Alternative:
    """A way to prepare images, and its evaluation."""

    decode: Decode
    resize_library: str
    evaluation: Evaluation

    def described(self) -> str:
        """A line for tables."""
        return f"decode {self.decode.value}, resized by {self.resize_library}"

    def moved(self, first: "Alternative") -> tuple[float, float]:
        """Against another one: the largest difference of a probability, and the share of images with the same top-1."""
        mine, others = _by_path(self.evaluation), _by_path(first.evaluation)
        pairs = [(mine[path], others[path]) for path in mine.keys() & others.keys()]
        largest = max((float(np.abs(here - there).max()) for here, there in pairs), default=0.0)
        return largest, sum(int(here.argmax()) == int(there.argmax()) for here, there in pairs) / max(1, len(pairs))


def ways(entry: Entry) -> list[tuple[Decode, str]]:
    """The model's current way first, then all other combinations of JPEG decoding and resize library."""
    first = (entry.serving.decode, entry.preprocessing.resize_library)
    every = [(decode, library) for library in (first[1], PILLOW, TORCH) for decode in Decode]
    return list(dict.fromkeys([first, *every]))


def compare(
    entry: Entry, version: int, repository: Path, samples: Sequence[Sample], report: Report
) -> Iterator[Alternative]:
    """Evaluate each way with a copy of the model in a separate Triton; raises UserError."""
    ensemble = entry.ensemble_of(version)
    with tempfile.TemporaryDirectory(prefix="compare-") as folder:
        copy = Path(folder)
        step = entry.step_after(version)
        for part in filter(None, (ensemble, step, entry.preprocessor, entry.classifier)):
            shutil.copytree(repository / part, copy / part)
        with serving(copy, (), report) as triton:
            for decode, library in ways(entry):
                _resize_with(library, copy / entry.preprocessor / "config.pbtxt")
                triton.load(entry.preprocessor, entry.classifier, ensemble)
                preprocessing = replace(entry.preprocessing, resize_library=library)
                way = entry.changed(preprocessing=preprocessing).with_serving(decode=decode)
                evaluation = Evaluation(entry.versions[version].classes, entry.multi_label)
                for _ in evaluate(ensemble, triton.address, samples, evaluation, resize_for(way)):
                    pass
                yield Alternative(decode, library, evaluation)


def _resize_with(library: str, config_path: Path) -> None:
    text = config_path.read_text()
    changed = with_parameter(text, RESIZE_PARAMETER, library)
    if changed != text:
        config_path.write_text(changed)


def _by_path(evaluation: Evaluation) -> dict[Path, NDArray[np.float32]]:
    return {
        answer.sample.path: answer.probabilities for answer in evaluation.answers if answer.probabilities is not None
    }
