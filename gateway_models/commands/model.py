"""`gateway model …`: one module for each group of commands, which register themselves with the app."""

from gateway_models.commands import add, calibrate, compare, drift, entries, places, postprocess, proof
from gateway_models.commands.group import model_app

__all__ = ["add", "calibrate", "compare", "drift", "entries", "model_app", "places", "postprocess", "proof"]
