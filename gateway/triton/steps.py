"""The steps of ensembles, with the version of each step's model."""

from collections.abc import Iterable
from typing import NamedTuple

from tritonclient.grpc.model_config_pb2 import ModelConfig

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
