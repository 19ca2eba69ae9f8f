"""Nothing: recovery of Triton servers is in gateway.triton.health."""

from gateway.hooks import Plugin


class Recovery(Plugin):
    """Adds nothing."""
