"""Converts a trained network in a file to one that Triton can serve; imports torch."""
