"""The error of everything that is added to a repository."""

from gateway.errors import UserError


class ModelError(UserError):
    """A model cannot be added or used as it is; the message names the reason and what to do instead."""
