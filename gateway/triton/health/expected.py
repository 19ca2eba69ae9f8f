"""The models that a Triton should serve, and which of them it does not."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from pydantic import ValidationError
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import RepositoryIndexResponse

from gateway.inference.backend import ModelState
from gateway.triton.contract import ROLLOUT_PARAMETER, pinned, rollout
from gateway.values.rollout import Rollout
from gateway.values.validation import first_fault

ALL = "*"
READY, LOADING, UNLOADING = "READY", "LOADING", "UNLOADING"
UNLOADED = "unloaded"
"""Triton's reason for a model that was unloaded by a request, and not because of a fault."""
NOT_LISTED = "Triton's model repository does not have it"
NO_REASON = "it was not loaded, or its config.pbtxt cannot be read; Triton's log may say why"
MAY_WAIT = "it was not loaded, and may need a model that failed to load: "


class ExpectedModels:
    """Compares Triton's repository index with the models that should be served there.

    Expected are the default model, those of `load` (`*`: all models in the repository when the default model is first
    served), those that this Triton has served, and those that it has tried to load. A model that was unloaded by a
    request is no longer expected, unless it is the default model. Versions that `rollouts` need are also expected, but
    not loaded: a missing one is a warning. With `on_demand`, only the default model and those of `load` are expected:
    requests load the others.
    """

    def __init__(self, default: str, *, load: Collection[str] = (), on_demand: bool = False) -> None:
        self.default = default
        self.on_demand = on_demand
        self._wanted = {*load} - {ALL}
        self._all = ALL in load
        self.rollouts: dict[str, Rollout] = {}
        """Which versions answer, of the models that have several."""
        self._wrong: dict[str, str] = {}
        """What is wrong with the record of a model, whose last good one applies."""
        self._known: set[str] = set()
        """Models that were served or have failed to load, and were not unloaded by a request since."""
        self.kept: set[str] = set()
        """Unloaded models that are still expected: the gateway that unloaded them for a reload has died."""
        self._declined: set[str] = set()
        """Models that failed to load, and were then unloaded on purpose."""
        self._lacking: set[tuple[str, str]] = set()
        """Names and versions that should be served and are not."""
        self.missing: tuple[ModelState, ...] = ()
        """The models, or versions of models, that should be loaded, and Triton's reason why they are not."""
        self.warnings: tuple[str, ...] = ()
        """What is wrong with `rollouts`: versions that are not served, with the remedy, and records."""

    def update(self, index: RepositoryIndexResponse) -> None:
        """Compare with Triton's current index."""
        rows: dict[str, list[ModelState]] = defaultdict(list)
        for model in index.models:
            rows[model.name].append(ModelState(model.name, model.version, model.state, model.reason))
        self._update_known(rows)
        loading = {name for name, versions in rows.items() if any(each.state == LOADING for each in versions)}
        # Including models whose load is retried, so that the models that need them keep their reason meanwhile.
        failed = {each.name for versions in rows.values() for each in versions if has_failed(each)}
        failed |= loading & {each.name for each in self.missing if each.version}
        missing: list[ModelState] = []
        expected = {self.default, *self._wanted, *self._known, *self.kept}
        for name in sorted(expected):
            versions = rows.get(name, ())
            if name in loading:
                # A missing model stays missing until it is loaded; served versions stay served while others are loaded.
                missing += [replace(each, state=LOADING) for each in self.missing if each.name == name]
                continue
            for fault in faults(name, versions):
                waits = fault.reason == NO_REASON and failed
                missing.append(replace(fault, reason=MAY_WAIT + ", ".join(sorted(failed))) if waits else fault)
        self.missing = tuple(missing)
        served = {(each.name, each.version) for versions in rows.values() for each in versions if each.state == READY}
        names = {name for name, _ in served}
        lacking = [
            (name, version)
            for name, known in self.rollouts.items()
            for version in known.versions
            if name in names  # else the model is missing as a whole, or waits for a request that loads it
            and (name, version) not in served
            and pinned(name, version) not in names
        ]
        self.warnings = (*self._wrong.values(), *(_warning(name, version) for name, version in lacking))
        unserved = expected - names
        if failed:
            # Triton does not report the steps of models that it has never loaded: they may need a failed one.
            unserved |= {name for name, versions in rows.items() if not any(each.state for each in versions)}
        self._lacking = {*lacking, *((each.name, each.version) for each in missing), *((name, "") for name in unserved)}

    def follow(self, config: ModelConfig) -> bool:
        """Take what an ensemble's configuration says of the versions that answer; whether that is a change."""
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

    def _update_known(self, rows: Mapping[str, Sequence[ModelState]]) -> None:
        if not rows:
            return  # the repository may not be mounted yet
        if self._all:
            self._known.update(rows)
            # The repository is complete once the default model is served. Models added later are loaded by a request.
            self._all = not any(each.state == READY for each in rows.get(self.default, ()))
        self._known &= rows.keys()
        self.kept &= rows.keys()
        for name, versions in rows.items():
            if any(each.state == READY for each in versions):
                if not self.on_demand:
                    self._known.add(name)
                self.kept.discard(name)
                self._declined.discard(name)
            elif any(map(has_failed, versions)):
                if name not in self._declined and not self.on_demand:
                    self._known.add(name)
            elif any(each.reason == UNLOADED for each in versions):
                self._known.discard(name)
                self._wanted.discard(name)

    def lacks(self, model_name: str, model_version: str = "") -> bool:
        """Whether a model, or one of its versions, should be served here and is not."""
        requested = {(model_name, model_version), (model_name, "")}
        if model_version:
            requested.add((pinned(model_name, model_version), ""))
        return not requested.isdisjoint(self._lacking)

    def expect(self, names: Iterable[str]) -> None:
        """Expect models from now on."""
        names = {*names}
        if not self.on_demand:
            self._known |= names
        self._declined -= names

    def want(self, name: str) -> None:
        """Have a model loaded from now on, as if `load` had named it."""
        self._wanted.add(name)

    def expect_all(self) -> None:
        """Expect every model of the repository: this Triton loads them by itself and takes no requests to load."""
        self._all = True

    def forget(self, names: Iterable[str]) -> None:
        """Stop expecting models that were unloaded on purpose."""
        names = {*names} - {self.default}
        self._declined |= names
        self._known -= names
        self._wanted -= names
        self.kept -= names
        self.missing = tuple(each for each in self.missing if each.name not in names)
        self._lacking = {(name, version) for name, version in self._lacking if name not in names}


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
