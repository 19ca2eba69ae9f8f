"""What under deploy/ is written by code: `make docs` writes it again, and a test holds it to the code."""

from pathlib import Path

DEPLOY = Path(__file__).resolve().parents[1]
CHART = DEPLOY / "helm" / "triton-image-gateway"
