"""Entries that were never added: no network behind them."""

from dataclasses import replace

from gateway_models.repository.entry import Entry, Outcome, Version
from gateway_models.repository.preprocessing import Preprocessing
from gateway_models.repository.spec import Format, ImageTensor, ModelSpec

SMALL = Preprocessing((40,), 32, "bilinear", (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))


def entry(**changes) -> Entry:
    """An entry of five classes with one version; `changes` are fields of its spec."""
    values = {"preprocessing": SMALL, "format": Format.TORCHSCRIPT, "tensor": ImageTensor.FP32, **changes}
    spec = ModelSpec("head.pt", "head", **values)
    return Entry(spec.name, {1: Version(spec, Outcome(5, "logits", 0.0, values["format"]))})


def with_serving(entry: Entry, **changes) -> Entry:
    """The entry, with other values of Serving."""
    return entry.changed(serving=replace(entry.spec.serving, **changes))


def with_outcome(entry: Entry, **changes) -> Entry:
    """The entry, with other facts in the outcome of its version; `changes` are fields of it."""
    version = entry.versions[1]
    return replace(entry, versions={1: replace(version, outcome=replace(version.outcome, **changes))})
