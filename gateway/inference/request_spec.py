"""The parameters of a request, and its statistics: time in each stage, and counts of its images."""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from gateway import metrics
from gateway.errors import ServiceError
from gateway.inference.backend import Embeddings
from gateway.inference.result import Result, Selection
from gateway.limits.caller import ANYONE, Caller


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


@dataclass(slots=True)
class RequestStats:
    """Statistics of one request: written by the service, read by log, metrics and trace."""

    stages: defaultdict[str, Stage] = field(default_factory=partial(defaultdict[str, Stage], Stage))
    """By name, in the order of first entry: read, prepare, wait, infer."""
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

    def seconds(self, started: float) -> dict[str, float]:
        """The time so far in each stage, and in all since `started` as `total`."""
        now = time.perf_counter()
        times = {}
        for name, stage in self.stages.items():
            times[name] = stage.past_seconds + now - stage.since if stage.inside else stage.past_seconds
        times["total"] = now - started
        return times


Report = Callable[[Any, Result], None]
"""Takes an image (see gateway.inference.request.Image), and the result of it or of its file."""


class Expansion(Protocol):
    """Makes several images of each upload of one request: frames, or masked copies."""

    def single(self, report: Report) -> Report:
        """The report for an upload that is one image, or has an error."""
        ...

    async def run(self, image: Any) -> bool:  # noqa: ANN401  # an Image of gateway.inference.request
        """Queue the images of an upload, by `Image.add`, and report one result of the file to its request.

        Returns False for an upload that is one image as usual. Raises what a step of an image may raise.
        """
        ...


@dataclass(slots=True)
class RequestSpec:
    """The parameters of a request, and its statistics (`stats`). `model_version` "" is the version in use."""

    model_name: str
    model_version: str
    selection: Selection | None
    """The classes in each image's result; None for the scores of every class, without labels."""
    timeout_seconds: float
    request_id: str
    embeddings: Embeddings = Embeddings.NONE
    """Whether each image's result includes its embedding."""
    split: bool = False
    """Whether the model's rollout has chosen the version, and not the client."""
    expansion: Expansion | None = None
    """Makes several images of each file; None if a file is one image."""
    lowest_priority: bool = False
    """Whether the images wait for all others, and no observer sees them."""
    route: str = ""
    """The path of the route, such as /predict; "" if it is not known."""
    key: str = ""
    """The name of the client's API key; "" without one."""
    address: str = ""
    """The address from which the request came; "" if it is not known."""
    strict: bool = False
    """Whether a damaged image is an error, even if it can be decoded."""
    stats: RequestStats = field(default_factory=RequestStats)
    caller: Caller = ANYONE
    """Charged for the images."""
    paid: bool = False
    """Whether the next image is charged already."""

    def count(self, result: Result) -> None:
        """Count each image of a file in the statistics, the metrics, and the API key's account."""
        caller, stats = self.caller, self.stats
        for row in result.rows:
            error, version = row.error, row.model_version
            stats.model_version = stats.model_version or version or None
            if error is None:
                stats.images_ok += 1
            else:
                stats.errors[error.code] = stats.errors.get(error.code, 0) + 1
                if isinstance(error, ServiceError):
                    stats.fault = stats.fault or error
            if caller is not ANYONE:
                caller.count(error)
            # A name that a client made up must not become a label, so a model counts by name once it has answered.
            model = self.model_name if version else ""
            metrics.series(metrics.IMAGES, "ok" if error is None else error.code, model, version).inc()
            if row.damaged:
                metrics.DAMAGED_IMAGES.inc()
            if error is None and (score := row.top_score) is not None:
                metrics.series(metrics.TOP_SCORE, model, version).observe(score)
