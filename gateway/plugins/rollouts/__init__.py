"""Roll-outs: shadow versions of models."""
