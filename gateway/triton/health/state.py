"""The known health of one Triton and its models; nothing here makes a call."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tritonclient.grpc.model_config_pb2 import ModelConfig

from gateway.errors import (
    ContractBroken,
    GatewayError,
    InferenceFailed,
    ModelNotFound,
    ModelUnavailable,
    TritonUnreachable,
)
from gateway.inference.backend import EndpointHealth, ModelHealth, ProbeResult
from gateway.triton.codec import CONTRACT, Codec
from gateway.triton.contract import pinned
from gateway.triton.endpoint import NOT_LOADED, StubDied

if TYPE_CHECKING:
    from gateway.triton.health.expected import ExpectedModels

NEVER = float("-inf")
NEWEST = -1
"""The version number that stands for the newest version."""


class Step(NamedTuple):
    """A version of a model that an ensemble runs; each version has its own processes."""

    name: str
    version: int = NEWEST

    def meets(self, others: Iterable["Step"]) -> bool:
        """Whether any of the others is, or may be, the same step."""
        return any(
            self.name == other.name and (self.version == other.version or NEWEST in {self.version, other.version})
            for other in others
        )


def steps_of(config: ModelConfig) -> tuple[Step, ...]:
    """An ensemble's steps in order; of a model that is no ensemble, the model itself."""
    found = (Step(step.model_name, step.model_version) for step in config.ensemble_scheduling.step)
    return tuple(found) or (Step(config.name),)


@dataclass(frozen=True, slots=True)
class Schedule:
    """When models are probed, and when they are reloaded."""

    interval_seconds: float
    """Between probes of a model without traffic."""
    timeout_seconds: float
    follow_seconds: float = 2.0
    """Between two looks at which versions of the models answer: less than half of rollout.FOLLOW_SECONDS."""
    quick_seconds: float = 0.5
    """Between probes while a model fails."""
    starting_seconds: float = 5.0
    """How long a Triton that has not answered yet may be starting. Until then it is probed five times as often, and its
    state is not logged."""
    orphaned_seconds: float = 30.0
    """How long a model may stay unloaded before it is loaded again: the gateway that unloaded it may have died."""
    trust_intervals: int = 4
    """Intervals for which clients' answers replace probes; not longer, since a cache may have answered."""
    others_intervals: int = 2
    """Intervals between probes of models other than the default."""
    failures: int = 3
    """Failed probes in a row after which a model is reloaded though no process died."""


@dataclass(slots=True)
class ModelHealthState:
    """The last probe of one ensemble and the client requests since; times are of the clock of HealthState."""

    name: str
    steps: tuple[Step, ...] = ()
    instances: int = 1
    """Instances of the step with the most: as many probes in a row reach each of them."""
    checked: bool = False
    """Whether its configuration was checked and keeps the contract."""
    codec: Codec = CONTRACT
    """What the checked configuration asks of requests and answers."""
    warnings: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    """Its steps' instances, in words."""
    last_probe: ProbeResult | None = None
    probed_at: float = NEVER
    """When the last probe ended."""
    good_since: float = NEVER
    """When the last successful request or probe was sent: failures of older requests are outdated."""
    answered_at: float = NEVER
    """When it last answered a client."""
    used_at: float = NEVER
    """When a client last sent a request to it, with any result."""
    suspected: bool = False
    """Whether a request has failed since the last probe."""
    failures: int = 0
    """Failed probes in a row that neither unloading nor overload explains."""

    def step(self, name: str) -> Step:
        """Its step with this name; if it has none, the newest version of that model."""
        return next((step for step in self.steps if step.name == name), Step(name))

    @property
    def error(self) -> GatewayError | None:
        """The error of the last probe."""
        return self.last_probe.error if self.last_probe else None

    @property
    def sound(self) -> bool:
        """Whether the last probe succeeded and no request has failed since."""
        return self.last_probe is not None and self.last_probe.error is None and not self.suspected


class HealthState:
    """The health of one Triton and its models: whether they answer, which processes are dead, what is reloaded.

    Probes, the results of clients' requests and recovery are recorded here. An event wakes one loop of the health
    checker. With `expected.on_demand`, requests load the models, and one that no client of this gateway uses is not
    probed: other gateways see by Triton's time of its last inference whether it is used.
    """

    def __init__(
        self,
        address: str,
        expected: "ExpectedModels",
        schedule: Schedule,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address = address
        self.expected = expected
        self.schedule = schedule
        self.clock = clock
        self.default = ModelHealthState(expected.default)
        self.models = {expected.default: self.default}
        """Each probed ensemble by its name, the default model first."""
        self.dead: dict[Step, float] = {}
        """Steps with a dead process, and when that was last seen."""
        self.dead_standalone: set[str] = set()
        """Models with a dead process that are no step of an ensemble, such as a stateful model."""
        self.recovering: set[str] = set()
        """Ensembles whose steps are being reloaded."""
        self.recovered_at = NEVER
        """When a reload last ended."""
        self.probe_soon, self.recovery_needed, self.models_missing = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._reachable = self._answered = False
        self._starts_until = clock() + schedule.starting_seconds

    @property
    def starting(self) -> bool:
        """Whether this Triton has not answered yet, and may still be starting."""
        return not self._answered and self.clock() < self._starts_until

    def is_broken(self, name: str) -> bool:
        """Whether the last probe of an ensemble found that it does not keep the contract."""
        model = self.models.get(name)
        return model is not None and isinstance(model.error, ContractBroken)

    @property
    def ready(self) -> bool:
        """Whether the default model answers."""
        return self.is_ready(self.default)

    @property
    def reachable(self) -> bool:
        """Whether this Triton answered the last probe of any model, with any result."""
        return self._reachable

    @property
    def probed(self) -> bool:
        """Whether the default model was probed at least once."""
        return self.default.last_probe is not None

    def answers(self, model_name: str, model_version: str = "") -> bool:
        """Whether a model answers here: its last probe succeeded and is recent, and no request has failed since.

        For a model that is unknown here: whether this Triton answers at all.
        """
        models = self.serving(model_name, model_version)
        if (model_version or not models) and self.lacks(model_name, model_version):
            return False
        return any(map(self.is_ready, models)) if models else self._reachable

    def lacks(self, model_name: str, model_version: str = "") -> bool:
        """Whether a model should be served here and is not, so that a request for it gets 503 instead of 404."""
        return self.expected.lacks(model_name, model_version)

    def lacking(self) -> list[str]:
        """The probed models that should be served here and are not."""
        return [name for name in self.models if self.lacks(name)]

    def serving(self, model_name: str, model_version: str = "") -> list[ModelHealthState]:
        """The probed ensembles that may answer for a model's version."""
        names = (model_name, pinned(model_name, model_version)) if model_version else (model_name,)
        return [self.models[name] for name in names if name in self.models]

    def is_ready(self, model: ModelHealthState) -> bool:
        """Whether a probed model answers."""
        if not model.sound or model.name in self.recovering or self.is_affected(model):
            return False
        if self.is_unused(model):
            return True
        age_seconds = self.clock() - max(model.probed_at, model.answered_at)
        return age_seconds <= 1.5 * self._interval_seconds(model) + 2 * self.schedule.timeout_seconds

    def is_unused(self, model: ModelHealthState) -> bool:
        """Whether a model is on demand, and no client of this gateway has used it for an interval."""
        if not self.expected.on_demand or model is self.default:
            return False
        return self.clock() - model.used_at > self._interval_seconds(model)

    def is_affected(self, model: ModelHealthState) -> bool:
        """Whether a process of one of its steps is dead, in the version that the ensemble uses."""
        return bool(self.dead) and any(step.meets(self.dead) for step in model.steps)

    def is_due(self, model: ModelHealthState) -> bool:
        """Whether to probe a model now."""
        if model.name in self.recovering:
            return False
        if not model.sound:
            return True
        if self.is_unused(model):
            return False
        interval_seconds, now = self._interval_seconds(model), self.clock()
        if now - model.answered_at < interval_seconds:
            interval_seconds *= self.schedule.trust_intervals
        return now - model.probed_at >= 0.8 * interval_seconds

    @property
    def failing(self) -> bool:
        """Whether anything fails that should be probed at short intervals."""
        # A model may stay unloaded for days, and the index shows when it is loaded; only the default model is urgent.
        return bool(self.dead or self.dead_standalone) or not all(
            model.sound or (model is not self.default and self.lacks(model.name)) for model in self.models.values()
        )

    def health(self, recovery: str) -> EndpointHealth:
        """The health of this Triton and its models; `recovery` is the state of recovery."""
        return EndpointHealth(
            address=self.address,
            ready=self.ready,
            last_probe=self.default.last_probe,
            models_not_ready=self.expected.missing,
            warnings=(
                *(warning for model in self.models.values() for warning in model.warnings),
                *self.expected.warnings,
            ),
            healing=recovery,
            models=tuple(
                ModelHealth(model.name, ready=self.is_ready(model), last_probe=model.last_probe, sizes=model.sizes)
                for model in self.models.values()
            ),
        )

    def answered(self, ensemble: str, sent_at: float) -> None:
        """Record a request that a model answered; `sent_at` is by time.monotonic."""
        model = self.models.setdefault(ensemble, ModelHealthState(ensemble))
        model.answered_at = model.used_at = self.clock()
        model.good_since = max(model.good_since, sent_at)

    def suspect(self, ensemble: str, error: GatewayError, sent_at: float) -> None:
        """Record a failed request, `sent_at` by time.monotonic; only a probe makes the model ready again."""
        model = self.models.get(ensemble)
        if model is None:
            return  # a name that a client invented
        model.answered_at, model.used_at = NEVER, self.clock()
        if isinstance(error, StubDied):
            if sent_at <= self.recovered_at:
                return
            self.dead[model.step(error.step)] = self.clock()
        elif isinstance(error, InferenceFailed) or sent_at <= model.good_since:
            return  # one bad request does not make a model unready; the next probe decides
        model.suspected = True
        self.probe_soon.set()

    def process_died(self, model: str) -> None:
        """Record the death of a process whose model is no step of an ensemble."""
        self.dead_standalone.add(model)
        self.recovery_needed.set()

    def record(self, model: ModelHealthState, probe: ProbeResult, sent_at: float) -> None:
        """Record a probe that has just ended."""
        error, now = probe.error, self.clock()
        self._reachable = not isinstance(error, TritonUnreachable)
        self._answered |= self._reachable
        if error is None:
            model.last_probe, model.probed_at, model.failures = probe, now, 0
            model.good_since = max(model.good_since, sent_at)
            return
        if isinstance(error, StubDied):
            if sent_at < self.recovered_at:
                return  # a reload has replaced the dead process meanwhile: such a probe takes 1 to 2 s
            self.dead[model.step(error.step)] = now
        elif isinstance(error, ModelNotFound | ModelUnavailable) and self.lacks(model.name):
            probe = ProbeResult(probe.at, probe.seconds, self._not_loaded(model.name, error))
        model.last_probe, model.probed_at, model.answered_at = probe, now, NEVER
        model.checked = False  # Triton may restart with another model
        model.failures = model.failures + 1 if isinstance(error, InferenceFailed) else 0

    def forget(self, names: Collection[str]) -> None:
        """Stop probing models that were unloaded on purpose."""
        others = {step.name for name, model in self.models.items() if name not in names for step in model.steps}
        steps = {step.name for name in names if name in self.models for step in self.models[name].steps}
        self.expected.forget({*names} | (steps - others))
        for name in {*names} - {self.default.name}:
            self.models.pop(name, None)

    def forget_evicted(self, ready: Collection[str]) -> None:
        """Stop probing models on demand that are not `ready` any more: another gateway has unloaded them."""
        for model in list(self.models.values()) if self.expected.on_demand else ():
            kept = model is self.default or model.name in self.recovering or self.is_affected(model)
            if model.name not in ready and not kept and not self.lacks(model.name):
                del self.models[model.name]

    def forget_unloaded(self) -> None:
        """Stop probing unloaded models; those that another gateway reloads are found again in the index."""
        for model in list(self.models.values()):
            unloaded = isinstance(model.error, ModelNotFound | ModelUnavailable) and not (
                isinstance(model.error, StubDied) or model.name in self.recovering or self.is_affected(model)
            )
            if unloaded and model is not self.default and not self.lacks(model.name):
                del self.models[model.name]

    def _interval_seconds(self, model: ModelHealthState) -> float:
        """Seconds between probes of a model without traffic."""
        return self.schedule.interval_seconds * (1 if model is self.default else self.schedule.others_intervals)

    def _not_loaded(self, model: str, error: GatewayError) -> ModelUnavailable:
        """The error of an expected model that is not loaded, with Triton's reason as its cause."""
        reasons = [each.reason for each in self.expected.missing if each.name == model]
        unavailable = ModelUnavailable(NOT_LOADED)
        unavailable.__cause__ = LookupError(reasons[0]) if reasons else error.__cause__
        return unavailable
