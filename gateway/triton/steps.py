"""The steps of ensembles, with the version of the model that each asks."""

from collections.abc import Iterable
from typing import NamedTuple

from tritonclient.grpc.model_config_pb2 import ModelConfig

NEWEST = -1
"""In place of a version: the newest that there is."""


class Step(NamedTuple):
    """A model that an ensemble runs, in one of its versions: each has processes of its own."""

    name: str
    version: int = NEWEST

    def meets(self, others: Iterable["Step"]) -> bool:
        """Whether one of some others is the same, or may be."""
        return any(
            self.name == other.name and (self.version == other.version or NEWEST in {self.version, other.version})
            for other in others
        )


def steps_of(config: ModelConfig) -> tuple[Step, ...]:
    """An ensemble's steps in order; the model itself where it is none."""
    found = (Step(step.model_name, step.model_version) for step in config.ensemble_scheduling.step)
    return tuple(found) or (Step(config.name),)
