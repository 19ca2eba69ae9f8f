"""The health state of the models of one Triton."""

from dataclasses import dataclass

from gateway.errors import GatewayError, InferenceFailed
from gateway.inference.backend import ModelHealth, ProbeResult
from gateway.triton.steps import Step


@dataclass(slots=True)
class ModelHealthState:
    """The last probe of one ensemble and the client requests since; times are of the health checker's clock."""

    name: str
    steps: tuple[Step, ...] = ()
    instances: int = 1
    """Instances of the step with the most: as many probes in a row reach each of them."""
    checked: bool = False
    """Whether its configuration was checked and keeps the contract."""
    warnings: tuple[str, ...] = ()
    last_probe: ProbeResult | None = None
    tried_at: float = float("-inf")
    """When the last probe ended."""
    good_since: float = float("-inf")
    """When the last successful request or probe was sent: failures of older requests are outdated."""
    answered_at: float = float("-inf")
    """When it last answered a client."""
    used_at: float = float("-inf")
    """When a client last sent a request to it, with any result."""
    suspected: bool = False
    """Whether a request has failed since the last probe."""
    failures: int = 0
    """Failed probes in a row that neither unloading nor overload explains."""

    def passed(self, probe: ProbeResult, sent_at: float, now: float) -> None:
        """Record a successful probe."""
        self.last_probe, self.tried_at, self.failures = probe, now, 0
        self.good_since = max(self.good_since, sent_at)

    def failed(self, probe: ProbeResult, error: GatewayError, now: float) -> None:
        """Record a failed probe."""
        self.last_probe, self.tried_at = probe, now
        self.answered_at = float("-inf")
        self.checked = False  # Triton may restart with another model
        self.failures = self.failures + 1 if isinstance(error, InferenceFailed) else 0

    def step(self, name: str) -> Step:
        """Its step with this name; if it has none, the newest version of that model."""
        return next((step for step in self.steps if step.name == name), Step(name))

    @property
    def sound(self) -> bool:
        """Whether the last probe succeeded and no request has failed since."""
        return self.last_probe is not None and self.last_probe.error is None and not self.suspected

    def health(self, *, ready: bool) -> ModelHealth:
        """Its public form."""
        return ModelHealth(self.name, ready=ready, last_probe=self.last_probe)


class HealthState:
    """The health state of each model of one Triton."""

    def __init__(self, default: ModelHealthState) -> None:
        self.default = default
        self.records = {default.name: default}
        """By the names of the ensembles."""
