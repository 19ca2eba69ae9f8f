"""The events that operators see of Triton's log."""

import pytest

from gateway_local.server_log import Event, LogReader, concerns_a_gpu_alone

HEAD = "1121 03:44:14.508741 16925 model_lifecycle.cc:472]"


@pytest.mark.parametrize(
    ("line", "event"),
    [
        (f'I{HEAD} "loading: echo:1"', Event("loading", "echo")),
        (f"I{HEAD} \"successfully loaded 'echo'\"", Event("loaded", "echo")),
        (f'E{HEAD} "failed to load: boom\\n\\nAt:\\n  x"', Event("error", "failed to load: boom")),
        (f'E{HEAD} "CudaDriverHelper has not been initialized."', None),
        (f'E{HEAD} "Exit timeout expired. Exiting immediately."', None),
        (f'W{HEAD} "a warning"', None),
        ("+-------+--------+", None),
    ],
)
def test_loaded_models_and_errors_are_events(line, event):
    assert LogReader().read(line) == event


@pytest.mark.parametrize(
    ("text", "alone"),
    [
        (
            f'E{HEAD} "unable to create stream: CUDA driver version is insufficient for it"',
            True,
        ),
        (f'W{HEAD} "failed to allocate pinned system memory: no pinned memory pool"', True),
        (f'I{HEAD} "loading: echo:1"', False),
        (f'E{HEAD} "failed to load: boom"', False),
    ],
)
def test_lines_about_missing_gpus(text, alone):
    assert concerns_a_gpu_alone(text) is alone


def test_repeated_error_is_shown_once():
    reader = LogReader()
    line = f'E{HEAD} "boom"'
    assert reader.read(line) == Event("error", "boom")
    assert reader.read(line) is None
