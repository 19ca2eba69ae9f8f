"""The known health of one Triton and its models; nothing here makes a call."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pydantic import ValidationError
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import RepositoryIndexResponse

from gateway.errors import (
    ContractBroken,
    GatewayError,
    InferenceFailed,
    ModelNotFound,
    ModelUnavailable,
    TritonUnreachable,
)
from gateway.inference.backend import EndpointHealth, ModelHealth, ModelState
from gateway.triton.client import NOT_LOADED, StubDied
from gateway.triton.configs import rollout
from gateway.triton.contract import ALL, ROLLOUT_PARAMETER, pinned
from gateway.triton.wire import CONTRACT, Codec
from gateway.values.rollout import Rollout
from gateway.values.validation import first_fault

READY, LOADING, UNLOADING = "READY", "LOADING", "UNLOADING"
UNLOADED = "unloaded"
"""Triton's reason for a model that was unloaded by a request, and not because of a fault."""
NOT_LISTED = "Triton's model repository does not have it"
OFF = "off"
"""The state of recovery if there is none."""
NO_REASON = "it was not loaded, or its config.pbtxt cannot be read; Triton's log may say why"


class ExpectedModels:
    """Compares Triton's repository index with the models that should be served there.

    Expected are the default model, the models of `load` (`*`: all models in the repository when the default model is
    first served), and models that this Triton server has served or has tried to load. A model that was unloaded by a
    request is no longer expected, unless it is the default model. Versions that `rollouts` need are also expected, but
    not loaded: a missing one is a warning. With `on_demand`, only the default model and the models of `load` are
    expected: requests load the others.
    """

    def __init__(self, default: str, *, load: Collection[str] = (), on_demand: bool = False) -> None:
        self.default = default
        self.on_demand = on_demand
        self.load = {*load} - {ALL}
        """Models to load, until a request unloads them."""
        self.all = ALL in load
        """Whether all models of the repository are expected, until the default model is served."""
        self.rollouts: dict[str, Rollout] = {}
        """Which versions answer, of the models that have several."""
        self._wrong: dict[str, str] = {}
        """The fault of each faulty record; its last valid version applies."""
        self._known: set[str] = set()
        """Models that were served or have failed to load, and were not unloaded by a request since."""
        self.orphans: dict[str, float] = {}
        """Models that a reload unloads, and from when they are expected even if they are still unloaded."""
        self._lacking: set[tuple[str, str]] = set()
        """Names and versions that should be served and are not."""
        self.missing: tuple[ModelState, ...] = ()
        """The models, or versions of models, that should be loaded, and Triton's reason why they are not."""
        self.warnings: tuple[str, ...] = ()
        """Faults of `rollouts`: versions that are not served, with the remedy, and records."""

    def update(self, index: RepositoryIndexResponse, now: float) -> None:
        """Compare with Triton's current index; `now` is by the clock of `orphans`."""
        rows = rows_of(index)
        served = {(each.name, each.version) for versions in rows.values() for each in versions if each.state == READY}
        names = {name for name, _ in served}
        if rows:  # else the repository may not be mounted yet
            self._update_known(rows, names)
            self.orphans = {n: at for n, at in self.orphans.items() if n in rows and not (n in names and at <= now)}
        expected = {self.default, *self.load, *self._known, *(name for name, at in self.orphans.items() if at <= now)}
        missing: list[ModelState] = []
        for name in sorted(expected):
            versions = rows.get(name, [])
            if any(each.state == LOADING for each in versions):
                # A missing model stays missing until it is loaded; served versions stay served while others are loaded.
                missing += [replace(each, state=LOADING) for each in self.missing if each.name == name]
            else:
                missing += faults(name, versions)
        self.missing = tuple(missing)
        lacking = [
            (name, version)
            for name, known in self.rollouts.items()
            for version in known.versions
            if name in names  # else the model is missing as a whole, or waits for a request that loads it
            and (name, version) not in served
            and pinned(name, version) not in names
        ]
        self.warnings = (*self._wrong.values(), *(_warning(name, version) for name, version in lacking))
        unserved = ((name, "") for name in expected - names)
        self._lacking = {*lacking, *unserved, *((each.name, each.version) for each in missing)}

    def _update_known(self, rows: Mapping[str, Sequence[ModelState]], served: Collection[str]) -> None:
        if self.all:
            self._known |= rows.keys()
            # The repository is complete once the default model is served. Models added later are loaded by a request.
            self.all = self.default not in served
        failed = {name for name, versions in rows.items() if any(map(has_failed, versions))}
        if not self.on_demand:
            self._known |= failed.union(served)
        unloaded = {name for name, versions in rows.items() if any(each.reason == UNLOADED for each in versions)}
        unloaded -= failed.union(served)
        self._known = self._known & rows.keys() - unloaded
        self.load -= unloaded

    def follow(self, config: ModelConfig) -> bool:
        """Take the versions that answer from an ensemble's configuration; whether they have changed."""
        name = config.name
        before = self.rollouts.pop(name, None)
        self._wrong.pop(name, None)
        try:
            found = rollout(config)
        except ValidationError as exc:
            where = f"{name}/config.pbtxt: parameter {ROLLOUT_PARAMETER!r}"
            self._wrong[name] = f"{where}: {first_fault(exc)}; correct it, or run gateway model use {name} …"
            found = before
        if found is not None:
            self.rollouts[name] = found
        return found != before

    def lacks(self, model_name: str, model_version: str = "") -> bool:
        """Whether a model, or one of its versions, should be served here and is not."""
        requested = {(model_name, model_version), (model_name, "")}
        if model_version:
            requested.add((pinned(model_name, model_version), ""))
        return not requested.isdisjoint(self._lacking)


def rows_of(index: RepositoryIndexResponse) -> dict[str, list[ModelState]]:
    """The versions of each model of Triton's index; a model that was never loaded has one without a state."""
    rows: dict[str, list[ModelState]] = defaultdict(list)
    for model in index.models:
        rows[model.name].append(ModelState(model.name, model.version, model.state, model.reason))
    return rows


def faults(name: str, versions: Sequence[ModelState]) -> list[ModelState]:
    """The failed versions of a model; or the model itself, if it serves no version."""
    if failed := [each for each in versions if has_failed(each)]:
        return failed
    if any(each.state in {READY, LOADING, UNLOADING} for each in versions):
        return []
    if not versions:
        return [ModelState(name, "", "", NOT_LISTED)]
    last = versions[-1]
    return [ModelState(name, last.version, last.state, last.reason or NO_REASON)]


def has_failed(state: ModelState) -> bool:
    """Whether Triton has tried to load a version, and could not."""
    return state.state == "UNAVAILABLE" and state.reason not in {"", UNLOADED}


def _warning(name: str, version: str) -> str:
    return (
        f"{name} has no version {version} that is ready, so its share of the requests is answered with 503: load it "
        f"with POST /models/{name}/load, or let others answer with gateway model use {name} …"
    )


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


@dataclass(frozen=True, slots=True)
class Schedule:
    """When models are probed, and when they are reloaded."""

    interval_seconds: float
    """Between probes of a model without traffic; at rest, `rest_intervals` of it."""
    timeout_seconds: float
    follow_seconds: float = 2.0
    """Between two looks at which versions of the models answer: less than half of rollout.FOLLOW_SECONDS."""
    quick_seconds: float = 0.5
    """Between probes while a model fails."""
    orphaned_seconds: float = 30.0
    """How long a model may stay unloaded before it is loaded again: the gateway that unloaded it may have died."""
    trust_intervals: int = 4
    """Intervals for which clients' answers replace probes; not longer, since a cache may have answered."""
    others_intervals: int = 2
    """Intervals between probes of models other than the default."""
    rest_seconds: float = 60.0
    """Time without a client's request, a failure or a recovery after which a model is at rest."""
    rest_intervals: int = 6
    """Intervals between probes of a model at rest: each costs as much processor time as an image."""
    failures: int = 3
    """Failed probes in a row after which a model is reloaded though no process died."""


@dataclass(slots=True)
class ProbedModel:
    """The last probe of one ensemble and the client requests since; times are of the clock of HealthState."""

    name: str
    steps: tuple[Step, ...] = ()
    instances: int = 1
    """Instances of the step with the most: as many probes in a row reach each of them."""
    checked: bool = False
    """Whether its configuration was checked and keeps the contract."""
    codec: Codec = CONTRACT
    """The format of requests and answers, from the checked configuration."""
    warnings: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    """Its steps' instances, in words."""
    tried_at: datetime | None = None
    """When the last probe was sent; None before the first."""
    took_seconds: float | None = None
    error: GatewayError | None = None
    """Why the last probe failed."""
    probed_at: float = NEVER
    """When the last probe ended."""
    good_since: float = NEVER
    """When the last successful request or probe was sent: failures of older requests are outdated."""
    answered_at: float = NEVER
    """When it last answered a client; NEVER after a failure."""
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
    def sound(self) -> bool:
        """Whether the last probe succeeded and no request has failed since."""
        return self.tried_at is not None and self.error is None and not self.suspected


class HealthState:
    """The health of one Triton and its models: whether they answer, which processes are dead, what is reloaded.

    Probes, the results of clients' requests, and reloads are recorded here; a failure wakes the loops of the checker.
    With `expected.on_demand`, requests load the models, and one that no client of this gateway uses is not probed.
    """

    def __init__(
        self,
        address: str,
        expected: ExpectedModels,
        schedule: Schedule,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address = address
        self.expected = expected
        self.schedule = schedule
        self.clock = clock
        self.default = ProbedModel(expected.default)
        self.models = {expected.default: self.default}
        """Each probed ensemble by its name, the default model first."""
        self.dead: set[Step] = set()
        """Models with a dead process that are to be reloaded: steps, or on their own such as a stateful model."""
        self.recovering: set[str] = set()
        """Ensembles whose steps are being reloaded."""
        self.recovered_at = NEVER
        """When a reload last ended."""
        self.healing = OFF
        """The state of recovery, in words."""
        self.reachable = False
        """Whether this Triton answered the last probe of any model, with any result."""
        self.wakers: list[asyncio.Event] = []
        """One for each loop of the health checker."""
        self._began_at = clock()

    def wake(self) -> None:
        """Have every loop of the health checker look again, now or once it is done."""
        for waker in self.wakers:
            waker.set()

    @property
    def starting(self) -> bool:
        """Whether this Triton may still be starting: it is probed five times as often, and its state is not logged."""
        return not self.reachable and self.clock() < self._began_at + self.schedule.interval_seconds

    def is_broken(self, name: str) -> bool:
        """Whether the last probe of an ensemble found that it does not keep the contract."""
        model = self.models.get(name)
        return model is not None and isinstance(model.error, ContractBroken)

    @property
    def ready(self) -> bool:
        """Whether the default model answers."""
        return self.is_ready(self.default)

    @property
    def probed(self) -> bool:
        """Whether the default model was probed at least once."""
        return self.default.tried_at is not None

    def answers(self, model_name: str, model_version: str = "") -> bool:
        """Whether a model answers here: its last probe succeeded and is recent, and no request has failed since.

        For a model that is unknown here: whether this Triton answers at all.
        """
        models = self.serving(model_name, model_version)
        if (model_version or not models) and self.lacks(model_name, model_version):
            return False
        return any(map(self.is_ready, models)) if models else self.reachable

    def lacks(self, model_name: str, model_version: str = "") -> bool:
        """Whether a model should be served here and is not, so that a request for it gets 503 instead of 404."""
        return self.expected.lacks(model_name, model_version)

    def serving(self, model_name: str, model_version: str = "") -> list[ProbedModel]:
        """The probed ensembles that may answer for a model's version."""
        names = (model_name, pinned(model_name, model_version)) if model_version else (model_name,)
        return [self.models[name] for name in names if name in self.models]

    def is_ready(self, model: ProbedModel) -> bool:
        """Whether a probed model answers."""
        if not model.sound or model.name in self.recovering or self.is_affected(model):
            return False
        if self.is_unused(model):
            return True
        age_seconds = self.clock() - max(model.probed_at, model.answered_at)
        longest_seconds = self.schedule.rest_intervals * self._interval_seconds(model)
        return age_seconds <= 1.5 * longest_seconds + 2 * self.schedule.timeout_seconds

    def is_unused(self, model: ProbedModel) -> bool:
        """Whether a model is on demand, and no client of this gateway has used it for an interval."""
        if not self.expected.on_demand or model is self.default:
            return False
        return self.clock() - model.used_at > self._interval_seconds(model)

    def is_affected(self, model: ProbedModel) -> bool:
        """Whether a process of one of its steps is dead, in the version that the ensemble uses."""
        return bool(self.dead) and any(step.meets(self.dead) for step in model.steps)

    def is_due(self, model: ProbedModel) -> bool:
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
        elif now - max(self._began_at, self.recovered_at, model.used_at) > self.schedule.rest_seconds:
            interval_seconds *= self.schedule.rest_intervals
        return now - model.probed_at >= 0.8 * interval_seconds

    @property
    def failing(self) -> bool:
        """Whether anything fails that should be probed at short intervals."""
        # A model may stay unloaded for days, and the index shows when it is loaded; only the default model is urgent.
        return bool(self.dead) or not all(
            model.sound or (model is not self.default and self.lacks(model.name)) for model in self.models.values()
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What this Triton's models lack, and what that costs."""
        return (*(warning for model in self.models.values() for warning in model.warnings), *self.expected.warnings)

    def summary(self) -> EndpointHealth:
        """The health of this Triton and its models."""
        return EndpointHealth(
            self.address,
            self.ready,
            self.default.tried_at,
            self.default.took_seconds,
            self.default.error,
            models_not_ready=self.expected.missing,
            warnings=self.warnings,
            models=tuple(
                ModelHealth(each.name, self.is_ready(each), each.tried_at, each.took_seconds, each.error, each.sizes)
                for each in self.models.values()
            ),
            healing=self.healing,
        )

    def answered(self, ensemble: str, sent_at: float) -> None:
        """Record a request that a model answered; `sent_at` is by time.monotonic."""
        model = self.models.setdefault(ensemble, ProbedModel(ensemble))
        model.answered_at = model.used_at = self.clock()
        model.good_since = max(model.good_since, sent_at)

    def suspect(self, ensemble: str, error: GatewayError, sent_at: float) -> None:
        """Record a failed request, `sent_at` by time.monotonic; only a probe makes the model ready again."""
        model = self.models.get(ensemble)
        if model is None:
            return  # a name that a client invented
        model.answered_at, model.used_at = NEVER, self.clock()
        if isinstance(error, StubDied):
            if not self._died(model.step(error.step), sent_at):
                return
        elif isinstance(error, InferenceFailed) or sent_at <= model.good_since:
            return  # one bad request does not make a model unready; the next probe decides
        if not model.suspected:
            model.suspected = True
            self.wake()

    def process_died(self, model: str, sent_at: float) -> None:
        """Record the death of a process whose model is not a step of an ensemble; `sent_at` by time.monotonic."""
        self._died(Step(model), sent_at)

    def record(self, model: ProbedModel, error: GatewayError | None, sent_at: float) -> None:
        """Record a probe that has just ended."""
        now = self.clock()
        self.reachable = not isinstance(error, TritonUnreachable)
        if isinstance(error, StubDied):
            if not self._died(model.step(error.step), sent_at):
                return
        elif isinstance(error, ModelNotFound | ModelUnavailable) and self.lacks(model.name):
            unavailable = ModelUnavailable(NOT_LOADED)
            reasons = [each.reason for each in self.expected.missing if each.name == model.name]
            unavailable.__cause__ = LookupError(reasons[0]) if reasons else error.__cause__
            error = unavailable
        is_news = model.error is None
        model.tried_at = datetime.now(UTC) - timedelta(seconds=now - sent_at)
        model.took_seconds, model.probed_at, model.error = round(now - sent_at, 6), now, error
        model.failures = model.failures + 1 if isinstance(error, InferenceFailed) else 0
        if error is None:
            model.good_since = max(model.good_since, sent_at)
        else:
            model.answered_at = NEVER
            model.checked = False  # Triton may restart with another model
            if is_news or model.failures == self.schedule.failures:
                self.wake()

    def forget(self, names: Collection[str]) -> None:
        """Stop probing models that were unloaded on purpose; the index shows that they are not expected."""
        needed = {step.name for name, model in self.models.items() if name not in names for step in model.steps}
        steps = {step.name for name in names if name in self.models for step in self.models[name].steps}
        for name in {*names} | (steps - needed):
            self.expected.orphans.pop(name, None)
        for name in {*names} - {self.default.name}:
            self.models.pop(name, None)

    def forget_unloaded(self, loaded: Collection[str]) -> None:
        """Stop probing all but the `loaded` models, the expected ones, and those that are being recovered."""
        for model in list(self.models.values()):
            kept = model is self.default or model.name in self.recovering or self.is_affected(model)
            if model.name not in loaded and not kept and not self.lacks(model.name):
                del self.models[model.name]

    def _died(self, step: Step, sent_at: float) -> bool:
        """Record that a request has found a process dead; False if a reload has replaced it since."""
        if sent_at < self.recovered_at:
            return False  # it takes Triton 1 to 2 s to answer for a dead process
        if self.healing != OFF and step not in self.dead:
            self.dead.add(step)
            self.wake()
        return True

    def _interval_seconds(self, model: ProbedModel) -> float:
        """Seconds between probes of a model without traffic."""
        return self.schedule.interval_seconds * (1 if model is self.default else self.schedule.others_intervals)
