"""The wheel's Triton, which runs without Docker."""
