"""Drift: whether the images that a model gets, and its answers, are distributed as those of a reference."""
