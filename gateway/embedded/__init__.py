"""The Triton server that comes in a PyPI wheel: fetch it, compose it, start it, keep it running."""
