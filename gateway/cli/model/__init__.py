"""`gateway model …`: a module for each group of its commands, which register themselves with the app."""

from gateway.cli.model import add, entries, proof
from gateway.cli.model.app import model_app

__all__ = ["add", "entries", "model_app", "proof"]
