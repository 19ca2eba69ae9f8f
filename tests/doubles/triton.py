"""A fake Triton in this process, for tests, with faults on demand."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig
from tritonclient.grpc.service_pb2 import ModelStatisticsResponse, RepositoryIndexResponse
from tritonclient.utils import InferenceServerException

from gateway.errors import (
    DeadlineExceeded,
    InferenceFailed,
    ModelNotFound,
    ModelUnavailable,
    TritonUnreachable,
    UndecodableImage,
)
from gateway.inference.backend import Call, SequenceScores, SequenceStep
from gateway.inference.result import Prediction, Predictions, Row
from gateway.triton.client import SequenceLost, StubDied, TritonEndpoint, translate
from gateway.triton.codecs import DIMS, INPUTS, OPTIONAL_INPUTS, OPTIONAL_OUTPUTS
from gateway.triton.contract import (
    DESCRIPTION_PARAMETER,
    DRIFT_REFERENCE_PARAMETER,
    FEATURES,
    PREDICTION,
    ROLLOUT_PARAMETER,
    SEQUENCE_MODEL,
    SEQUENCE_PREDICTION,
)
from gateway.triton.health.state import NEWEST
from gateway.triton.wire import CONTRACT, Codec

READY, UNAVAILABLE = "READY", "UNAVAILABLE"
KILLER = b"kills the process"
"""An image that begins with this crashes the process of the first step that gets it."""
FAILS, SLOW, UNDECODABLE = b"fails", b"takes a second", b"cannot be decoded"
"""Images that begin with these fail their call, take a second, or are not decoded."""
LABELS, SCORES = ("cat", "dog"), (0.9, 0.1)
EMBEDDING_SIZE = 3


@dataclass
class FakeTriton:
    """Ensembles and their steps. Tests set its behaviour, and read the calls and loads that it received.

    A step "net:2" is version 2 of the model "net"; it dies and fails alone, and is loaded with the others.
    """

    ensembles: dict[str, tuple[str, ...]] = field(default_factory=lambda: {"ensemble_model": ("preprocessor", "net")})
    instances: int = 1
    """Instances of each step; only the first one dies of a KILLER image or by `kill`."""
    away: bool = False
    hangs: bool = False
    """Whether each call ends at its deadline."""
    dead: set[str] = field(default_factory=set)
    """Steps with a dead process."""
    failing: set[str] = field(default_factory=set)
    """Steps that answer every request with an error; after a reload only unless `recovers_on_reload`."""
    recovers_on_reload: bool = True
    refuses_to_load: set[str] = field(default_factory=set)
    refuses_force_reload: set[str] = field(default_factory=set)
    unloaded: set[str] = field(default_factory=set)
    """Models unloaded by a request; the ensembles over them are unloaded and loaded with them."""
    failed: dict[str, str] = field(default_factory=dict)
    """Models that could not be loaded, and why; after a restart, Triton does not report the ensembles over them."""
    never_loaded: set[str] = field(default_factory=set)
    """Models that are in the repository, and that Triton has not loaded since its start."""
    loads_by_itself: bool = False
    """Whether Triton has another --model-control-mode than explicit."""
    latency_seconds: Callable[[], float] | None = None
    load_seconds: float = 0.0
    embedding_size: int = 0
    """Size of FEATURES; 0 if the ensembles do not have this output."""
    image_type: int = DataType.TYPE_FP32
    """Data type of the tensor between the steps."""
    drift_reference: str = ""
    description: str = ""
    """These are parameters of each ensemble."""
    rollouts: dict[str, str] = field(default_factory=dict)
    """The parameter of each ensemble, by its name."""
    minimal: bool = False
    """Whether the ensembles have RAW_IMAGE and PREDICTION alone: an image that cannot be decoded fails its call."""

    calls: list[Call] = field(default_factory=list)
    done: list[tuple[str, str]] = field(default_factory=list)
    """The loads, force reloads and unloads, in order."""
    sequences: dict[int, int] = field(default_factory=dict)
    """The open sequences, with the number of frames of each."""
    answers: Counter[str] = field(default_factory=Counter)
    """The number of each ensemble's answers."""
    _requests: int = 0

    def kill(self, step: str) -> None:
        """End the process of a step's first instance."""
        self.dead.add(step)

    def restart(self) -> None:
        """Restart and load every model; the models in `refuses_to_load` fail."""
        self.dead.clear()
        self.unloaded.clear()
        self.failed = dict.fromkeys(self.refuses_to_load & self.steps(), "no memory")
        over = {name for name, steps in self.ensembles.items() if self.failed.keys() & set(map(_model, steps))}
        self.never_loaded = over | (self.refuses_to_load & self.ensembles.keys())

    def load(self, model: str) -> None:
        """Load a model, its missing steps, and the ensembles that waited for it; raises InferenceFailed."""
        for name in (*map(_model, self.ensembles.get(model, ())), model):
            if name in self.refuses_to_load:
                if name in self.steps():
                    self.unloaded.discard(name)
                    self.failed[name] = "no memory"
                raise InferenceFailed from InferenceServerException(f"load failed for model '{name}': no memory")
            if name in self.unloaded | self.failed.keys() | self.never_loaded:
                self.recover(name)
            self.unloaded.discard(name)
            self.never_loaded.discard(name)
            if self.failed.pop(name, None):
                for ensemble, steps in self.ensembles.items():
                    if name in map(_model, steps) and not self.failed.keys() & set(map(_model, steps)):
                        self.never_loaded.discard(ensemble)

    def reloads(self, step: str) -> int:
        """Number of times that a step was unloaded."""
        return self.done.count(("unload", step))

    def steps(self) -> set[str]:
        """The model of every step."""
        return {_model(step) for steps in self.ensembles.values() for step in steps}

    def models(self) -> set[str]:
        """Every model of the repository but SEQUENCE_MODEL."""
        return {*self.ensembles, *self.steps()}

    def recover(self, model: str) -> None:
        """Give a model new processes."""
        self.dead = {step for step in self.dead if _model(step) != model}
        if self.recovers_on_reload:
            self.failing = {step for step in self.failing if _model(step) != model}

    def config(self, name: str) -> ModelConfig:
        config = ModelConfig(name=name, max_batch_size=8)
        if name == SEQUENCE_MODEL:
            config.output.add(name=SEQUENCE_PREDICTION)
            return config
        if name in self.ensembles:
            config.output.add(name=PREDICTION, data_type="TYPE_FP32", dims=[2])
            if self.embedding_size:
                config.output.add(name=FEATURES, data_type=OPTIONAL_OUTPUTS[FEATURES], dims=[self.embedding_size])
            outputs = {name: kind for name, kind in OPTIONAL_OUTPUTS.items() if name != FEATURES}
            for kind, tensors in (
                (config.input, INPUTS),
                *(() if self.minimal else ((config.input, OPTIONAL_INPUTS), (config.output, outputs))),
            ):
                for tensor, data_type in tensors.items():
                    kind.add(name=tensor, data_type=data_type, dims=DIMS[tensor])
            written = {DRIFT_REFERENCE_PARAMETER: self.drift_reference, DESCRIPTION_PARAMETER: self.description}
            for key, text in written.items():
                if text:
                    config.parameters[key].string_value = text
            if name in self.rollouts:
                config.parameters[ROLLOUT_PARAMETER].string_value = self.rollouts[name]
            for step in self.ensembles[name]:
                version = int(step.partition(":")[2] or NEWEST)
                config.ensemble_scheduling.step.add(model_name=_model(step), model_version=version)
        else:
            config.instance_group.add(count=self.instances)
            config.input.add(name="PREPROCESSED_IMAGE", data_type=self.image_type, dims=[3, 224, 224])
            config.output.add(name=PREDICTION, label_filename="labels.txt")
        return config

    def answer(self, call: Call, class_count: int | None, *, embeddings: bool = False) -> Sequence[Row]:
        """The answer to a request; raises what TritonEndpoint.infer raises."""
        steps = self.ensembles.get(call.model_name)
        if steps is None or call.model_name in self.never_loaded or call.model_version not in {"", "1"}:
            raise ModelNotFound
        if (self.failed.keys() | self.unloaded) & {call.model_name, *map(_model, steps)}:
            raise ModelUnavailable
        if class_count == 0 or (embeddings and not self.embedding_size):
            raise InferenceFailed
        self._requests += 1
        images = call.images
        for step in steps:
            first_instance = self._requests % self.instances == 0
            if first_instance and any(image.startswith(KILLER) for image in images):
                self.kill(step)
            if step in self.dead and first_instance:
                raise StubDied(_model(step))
            fails = (FAILS, UNDECODABLE) if self.minimal else FAILS
            if step in self.failing or any(image.startswith(fails) for image in images):
                raise InferenceFailed
        embedding = np.ones(self.embedding_size, np.float32) if embeddings else None
        if class_count is None:
            row = Row(scores=np.array(SCORES, np.float32), embedding=embedding)
        else:
            best = [Prediction(*each) for each in zip(LABELS, range(len(LABELS)), SCORES, strict=True)][:class_count]
            row = Row(predictions=Predictions.of(best), embedding=embedding)
        self.answers[call.model_name] += 1
        refused = Row(error=UndecodableImage())
        rows = (refused if image.startswith(UNDECODABLE) else row for image in images)
        return [replace(row, model_version="1") for row in rows]


class FakeEndpoint(TritonEndpoint):
    """A TritonEndpoint of a FakeTriton."""

    def __init__(self, address: str, triton: FakeTriton | None = None) -> None:
        self.address = address
        self.supports_cancellation = True
        self.triton = triton or FakeTriton()
        self.closed = False

    async def infer(
        self, call: Call, *, class_count: int | None, embeddings: bool = False, codec: Codec = CONTRACT
    ) -> Sequence[Row]:
        await self._reach()
        self.triton.calls.append(call)
        seconds = self.triton.latency_seconds() if self.triton.latency_seconds else 0.0
        seconds += any(image.startswith(SLOW) for image in call.images)
        if seconds:
            await asyncio.sleep(min(seconds, call.deadline.left_seconds))
            if call.deadline.passed:
                raise DeadlineExceeded
        return self.triton.answer(call, class_count, embeddings=embeddings)

    async def infer_sequence(self, step: SequenceStep) -> SequenceScores:
        """Return the frame's own scores; raises SequenceLost unless the sequence was started here."""
        await self._reach()
        if step.model_name in self.triton.dead:
            raise StubDied(step.model_name)
        if step.start:
            self.triton.sequences[step.sequence_id] = 0
        if step.sequence_id not in self.triton.sequences:
            raise SequenceLost
        if step.end:
            del self.triton.sequences[step.sequence_id]
            return SequenceScores(step.scores, 0)
        self.triton.sequences[step.sequence_id] += 1
        return SequenceScores(step.scores, self.triton.sequences[step.sequence_id])

    async def fetch_server_metadata(self) -> str:
        """A version without known faults."""
        await self._reach()
        return "99.0.0"

    async def index(self) -> RepositoryIndexResponse:
        await self._reach()
        index = RepositoryIndexResponse()
        for name in sorted(self.triton.models()):
            steps = {name, *map(_model, self.triton.ensembles.get(name, ()))}
            if name in self.triton.never_loaded:
                index.models.add(name=name)
            elif name in self.triton.failed:
                index.models.add(name=name, version="1", state=UNAVAILABLE, reason=self.triton.failed[name])
            elif steps & (self.triton.unloaded | self.triton.failed.keys()):
                index.models.add(name=name, version="1", state=UNAVAILABLE, reason="unloaded")
            else:
                index.models.add(name=name, version="1", state=READY)
        return index

    async def config(self, name: str, version: str = "") -> ModelConfig:
        await self._reach()
        known = {*self.triton.models(), SEQUENCE_MODEL} - self.triton.never_loaded
        if name not in known or version not in {"", "1"}:
            raise ModelNotFound
        if {name, *map(_model, self.triton.ensembles.get(name, ()))} & (
            self.triton.unloaded | self.triton.failed.keys()
        ):
            raise ModelUnavailable
        return self.triton.config(name)

    async def statistics(self, name: str, version: str = "") -> ModelStatisticsResponse:
        """The number of an ensemble's answers."""
        try:
            await self.config(name)
        except ModelNotFound as exc:
            raise ModelUnavailable from exc
        found = ModelStatisticsResponse()
        if count := self.triton.answers[name]:
            found.model_stats.add(name=name).inference_stats.success.count = count
        return found

    async def load(self, name: str) -> None:
        """Load a model with a new process."""
        await self._reach()
        await asyncio.sleep(self.triton.load_seconds)
        await self._reach()  # it may have gone meanwhile
        self.triton.done.append(("load", name))
        if self.triton.loads_by_itself:
            words = "explicit model load / unload is not allowed if polling is enabled"
            raise translate(error := InferenceServerException(words, "StatusCode.UNAVAILABLE")) from error
        if name not in self.triton.models() | {SEQUENCE_MODEL}:
            raise InferenceFailed
        self.triton.load(name)

    async def force_reload(self, name: str) -> None:
        """Replace a model's processes; the old ones answer meanwhile."""
        await self._reach()
        await asyncio.sleep(self.triton.load_seconds)
        self.triton.done.append(("force_reload", name))
        await self.config(name)
        if name in self.triton.refuses_force_reload:
            raise InferenceFailed
        self.triton.recover(name)

    async def unload(self, name: str) -> None:
        await self._reach()
        self.triton.done.append(("unload", name))
        self.triton.unloaded.add(name)

    async def close(self) -> None:
        """Record that it is closed."""
        self.closed = True

    async def _reach(self) -> None:
        await asyncio.sleep(0)
        if self.triton.away:
            raise TritonUnreachable
        if self.triton.hangs:
            raise DeadlineExceeded


def _model(step: str) -> str:
    """The model of a step, without its version."""
    return step.partition(":")[0]
