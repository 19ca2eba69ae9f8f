"""Entries that were never added: no network behind them."""

from gateway_models.repository.entry import Entry, Format, Precision, Serving, Version
from gateway_models.repository.preprocessing import Preprocessing

SMALL = Preprocessing((40,), 32, "bilinear", (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))


def entry(**changes) -> Entry:
    version = Version("head.pt", "", "", "logits", Precision.FP32, 0.0)
    defaults = {"name": "head", "classes": 5, "preprocessing": SMALL, "format": Format.TORCHSCRIPT}
    return Entry(**{**defaults, "multi_label": False, "serving": Serving(), "versions": {1: version}, **changes})
