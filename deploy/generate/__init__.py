"""Writes the generated files under deploy/; `make docs` runs it, and a test compares the files with the code."""

from pathlib import Path

DEPLOY = Path(__file__).resolve().parents[1]
CHART = DEPLOY / "helm" / "triton-image-gateway"
