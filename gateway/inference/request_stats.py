"""Statistics of one request: time in each stage, and counts of its images."""

import time
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial

from gateway.errors import ServiceError


class Stage:
    """The time in which at least one image of a request is in one stage; images enter and leave it with `with`.

    Overlapping images count once, so that no stage is longer than the request.
    """

    inside = 0
    """Images that are in the stage."""
    since = 0.0
    """When the stage was last entered while no image was in it."""
    past_seconds = 0.0
    """The time until then."""

    def enter(self) -> None:
        """Count an image that enters the stage."""
        if self.inside == 0:
            self.since = time.perf_counter()
        self.inside += 1

    def leave(self, *_: object) -> None:
        """Count an image that leaves the stage."""
        self.inside -= 1
        if self.inside == 0:
            self.past_seconds += time.perf_counter() - self.since

    __enter__, __exit__ = enter, leave

    @property
    def seconds(self) -> float:
        """The time so far."""
        return self.past_seconds + (time.perf_counter() - self.since if self.inside else 0.0)


class Stages(defaultdict[str, Stage]):
    """The stages of a request by name, in the order of first entry: read, prepare, wait, infer."""

    def seconds(self, started: float) -> dict[str, float]:
        """The time so far in each stage, and in all since `started` as `total`."""
        now = time.perf_counter()
        times = {}
        for name, stage in self.items():
            times[name] = stage.past_seconds + now - stage.since if stage.inside else stage.past_seconds
        times["total"] = now - started
        return times


@dataclass(slots=True)
class RequestStats:
    """Statistics of one request: written by the service, read by log, metrics and trace."""

    stages: Stages = field(default_factory=partial(Stages, Stage))
    received_bytes: int = 0
    """Bytes of the body received so far."""
    images_ok: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    """Images that failed, by the code of their error."""
    fault: ServiceError | None = None
    """The first error of an image that was not the image's own."""
    model_version: str | None = None
    """The version that answered."""

    @property
    def images_failed(self) -> int:
        """Images with an error."""
        return sum(self.errors.values())
