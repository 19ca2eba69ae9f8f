"""The wiring of the application."""

import subprocess
import sys

from tests.processes import PROJECT

OPTIONAL = (
    "gateway_plugins.oip.grpc_api",
    "gateway_plugins.urls.fetcher",
    "gateway_plugins.otlp.exporter",
    "grpc_reflection.",
    "gateway_predictions.service_log",
    "pyarrow",
)
"""Packages of optional parts."""


def test_parts_that_are_off_are_not_imported():
    code = (
        "import sys; from gateway.app import create_app; from gateway.plugins import settings_class; "
        "create_app(settings_class()(_env_file=None)); "
        f"print([name for name in sys.modules if name.startswith({OPTIONAL})])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
