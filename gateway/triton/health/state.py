"""What is known of the models of one Triton."""

from dataclasses import dataclass

from gateway.errors import GatewayError, InferenceFailed
from gateway.inference.backend import ModelHealth, ProbeResult
from gateway.triton.steps import Step


@dataclass(slots=True)
class ModelHealthState:
    """The trials of one ensemble, and what clients' requests have shown since; moments are of the watch's clock."""

    name: str
    steps: tuple[Step, ...] = ()
    instances: int = 1
    """How many instances its step with the most has: so many trials in a row meet each of them."""
    checked: bool = False
    """Whether its configuration was seen to keep the contract."""
    warnings: tuple[str, ...] = ()
    last_probe: ProbeResult | None = None
    tried_at: float = float("-inf")
    """When the last trial ended."""
    good_since: float = float("-inf")
    """When the last request or trial that went well was sent: older failures say nothing of what is now."""
    answered_at: float = float("-inf")
    """When the last client got an answer through it."""
    used_at: float = float("-inf")
    """When the last client asked it, whatever came of it."""
    suspected: bool = False
    """Whether a request has failed since the last trial."""
    failures: int = 0
    """Trials in a row that Triton answered with an error that no unloading or overload explains."""

    def passed(self, probe: ProbeResult, sent_at: float, now: float) -> None:
        """Note a trial that went well."""
        self.last_probe, self.tried_at, self.failures = probe, now, 0
        self.good_since = max(self.good_since, sent_at)

    def failed(self, probe: ProbeResult, error: GatewayError, now: float) -> None:
        """Note a trial that failed."""
        self.last_probe, self.tried_at = probe, now
        self.answered_at = float("-inf")
        self.checked = False  # what comes back may be another Triton, with another model
        self.failures = self.failures + 1 if isinstance(error, InferenceFailed) else 0

    def step(self, name: str) -> Step:
        """Its step of a name; where it has none, any version of that."""
        return next((step for step in self.steps if step.name == name), Step(name))

    @property
    def sound(self) -> bool:
        """Whether the last trial went well, and no request has failed since."""
        return self.last_probe is not None and self.last_probe.error is None and not self.suspected

    def health(self, *, ready: bool) -> ModelHealth:
        """Its public form."""
        return ModelHealth(self.name, ready=ready, last_probe=self.last_probe)


class HealthState:
    """What is known of the models of one Triton."""

    def __init__(self, default: ModelHealthState) -> None:
        self.default = default
        self.records = {default.name: default}
        """By the names of the ensembles."""
