"""A FastAPI gateway in front of a Triton Inference Server ensemble that classifies uploaded images."""

__version__ = "0.1.0"
"""The version of wheels, images and chart. After a change: `make docs`."""
