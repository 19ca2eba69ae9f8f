"""Dashboards as data: deploy.generate.dashboards writes Grafana's JSON, tests run the queries in Prometheus.

`$sel` is replaced by the dashboard's variables, `$window` by Grafana's $__rate_interval.
"""

from dataclasses import dataclass
from typing import Literal

from gateway.errors import ServiceError

Kind = Literal["timeseries", "stat", "heatmap"]


@dataclass(frozen=True)
class Query:
    """A PromQL expression and the legend of its series. `quiet`: it has no data without faults, or without a GPU."""

    expression: str
    legend: str
    quiet: bool = False


@dataclass(frozen=True)
class Panel:
    """A panel; `span` is its width in 24ths, `unit` Grafana's id of a unit."""

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
"""The outcomes of images that are faults of the service; the two excluded codes never belong to one image."""


def rate(metric: str, labels: str = "", by: str = "") -> str:
    """The sum of a counter's rates."""
    group = f" by ({by})" if by else ""
    inner = ", ".join(filter(None, ["$sel", labels]))
    return f"sum{group} (rate({metric}{{{inner}}}[$window]))"


def total(metric: str, by: str = "") -> str:
    """The sum of a gauge."""
    return f"sum{f' by ({by})' if by else ''}({metric}{{$sel}})"


def increase(metric: str, by: str = "") -> str:
    """The sum of a counter's increases."""
    return f"sum{f' by ({by})' if by else ''}(increase({metric}{{$sel}}[$window]))"


def quantile(share: float, histogram: str, labels: str = "", by: str = "") -> str:
    """A quantile of a histogram, over the fleet."""
    buckets = rate(f"{histogram}_bucket", labels, ", ".join(filter(None, ["le", by])))
    return f"histogram_quantile({share}, {buckets})"


def per_request(duration: str) -> str:
    """Mean seconds for each request to one of Triton's models, from a counter of microseconds."""
    return f"{rate(duration, by='model')} / {rate('nv_inference_request_success', by='model')} / 1e6"


def share(part: str, whole: str) -> str:
    """The quotient of two expressions."""
    return f"{part} / {whole}"


FULLNESS = share(
    f"({total('gateway_images_in_flight')} + {total('gateway_images_waiting')})",
    total("gateway_images_in_flight_limit"),
)
