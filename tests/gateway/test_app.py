"""The wiring of the application, and its errors."""

import subprocess
import sys
import weakref

import pytest

from gateway.errors import clear_frames
from tests.processes import PROJECT

OPTIONAL = (
    *("gateway.plugins.oip.grpc_api", "gateway.plugins.urls.fetcher", "gateway.plugins.otlp.exporter"),
    *("grpc_reflection.", "gateway_models.predictions.service_log", "httpcore2", "pyarrow"),
    *("opentelemetry.sdk", "opentelemetry.instrumentation"),
    *("gateway.decoder", "exact_resize", "cv2", "PIL", "pillow_heif", "torch"),
)
"""Packages of optional parts, and of decoding, which other processes import."""


def test_parts_that_are_off_are_not_imported():
    code = (
        "import sys; from gateway.app import create_app; from gateway.plugin_loading import settings_class; "
        "create_app(settings_class()(_env_file=None)); "
        f"print([name for name in sys.modules if name.startswith({OPTIONAL})])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_error_releases_the_locals_of_its_frames():
    """A client may take a minute to read its error, which must not keep its upload in memory for as long."""
    held: list[weakref.ref[set[bytes]]] = []

    def fail() -> None:
        upload: set[bytes] = set()
        held.append(weakref.ref(upload))
        raise ValueError

    def fail_again() -> None:
        upload: set[bytes] = set()
        held.append(weakref.ref(upload))
        try:
            fail()
        except ValueError as exc:
            raise KeyError from exc

    with pytest.raises(KeyError) as failure:
        fail_again()
    assert [ref() is None for ref in held] == [False, False]
    clear_frames(failure.value)
    assert [ref() is None for ref in held] == [True, True]
    assert failure.value.__traceback__ is not None
