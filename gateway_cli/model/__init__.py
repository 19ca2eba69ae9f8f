"""`gateway model …`: one module for each group of commands, which register themselves with the app."""

from gateway_cli.model import add, after, calibrate, compare, drift, entries, places, proof
from gateway_cli.model.group import model_app

__all__ = [
    "add",
    "after",
    "calibrate",
    "compare",
    "drift",
    "entries",
    "model_app",
    "places",
    "proof",
]
