"""What dashboards are made of, as data: deploy.generate.dashboards makes Grafana's JSON of it, tests ask Prometheus.

`$sel` is replaced by the dashboard's variables, `$window` by Grafana's $__rate_interval.
"""

from dataclasses import dataclass
from typing import Literal

from gateway.errors import ServiceError

Kind = Literal["timeseries", "stat", "heatmap"]


@dataclass(frozen=True)
class Query:
    """A PromQL expression and the legend of its series. `quiet`: no data while all is well, or without a GPU."""

    expression: str
    legend: str
    quiet: bool = False


@dataclass(frozen=True)
class Panel:
    """A panel; `span` counts of 24 columns, `unit` is Grafana's id of a unit."""

    title: str
    meaning: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: Kind = "timeseries"
    span: int = 8
    maximum: float | None = None
    stacked: bool = False


@dataclass(frozen=True)
class Row:
    """Panels under a heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Board:
    """A dashboard; `by_model` gives it a variable for the model."""

    name: str
    title: str
    meaning: str
    rows: tuple[Row, ...]
    by_model: bool = False


CLASSIFYING = 'route=~"/predict|/v2/.+/infer"'
IMAGE_FAULTS = "|".join(
    sorted({error.code for error in ServiceError.__subclasses__()} - {"internal_error", "load_failed"})
)
"""The service's own faults, as outcomes of an image; the two left out end a request, or a request to load."""
FULLNESS = (
    "(sum(gateway_images_in_flight{$sel}) + sum(gateway_images_waiting{$sel}))"
    " / sum(gateway_images_in_flight_limit{$sel})"
)


def rate(metric: str, labels: str = "", by: str = "") -> str:
    """The sum of a counter's rates."""
    group = f" by ({by})" if by else ""
    inner = ", ".join(filter(None, ["$sel", labels]))
    return f"sum{group} (rate({metric}{{{inner}}}[$window]))"


def quantile(share: float, histogram: str, labels: str = "", by: str = "") -> str:
    """A quantile of a histogram, over the fleet."""
    buckets = rate(f"{histogram}_bucket", labels, ", ".join(filter(None, ["le", by])))
    return f"histogram_quantile({share}, {buckets})"


def per_request(duration: str) -> str:
    """Seconds that one of Triton's requests to a model spent, of a counter of microseconds."""
    return f"{rate(duration, by='model')} / {rate('nv_inference_request_success', by='model')} / 1e6"


def share(part: str, whole: str) -> str:
    """One expression over another."""
    return f"{part} / {whole}"
