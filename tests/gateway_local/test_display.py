"""The display of a start: the console, the status lines, and the events of Triton's log."""

import io
import json
import sys
import threading

import pytest
from rich.table import Table

from gateway.command_line.terminal import emit
from gateway_local import display
from gateway_local.console import PlainConsole
from gateway_local.display import Display, log_path
from gateway_local.server_log import concerns_a_gpu_alone
from gateway_local.up import run_aloud
from tests.processes import wait_for

HEAD = "1122 15:46:36.417382 507 model_lifecycle.cc:472]"


LOG = [
    f'I{HEAD} "loading: classifier:1"',
    f'I{HEAD} "loading: preprocessor:1"',
    f"I{HEAD} \"successfully loaded 'preprocessor'\"",
    "| Model | Version |",
]


def logged(shown: Display, lines: list[str]) -> None:
    for line in lines:
        shown.log(f"triton | {line}")


@pytest.mark.parametrize("as_json", [False, True])
def test_step_is_reported_at_once_and_again_with_the_models_that_are_loading(monkeypatch, as_json):
    monkeypatch.setattr(display, "REMIND_SECONDS", 0.01)
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    shown = Display(as_json=as_json)
    logged(shown, LOG)
    with shown.waiting("starting Triton"):
        assert "starting Triton" in stream.getvalue()
        wait_for(lambda: "starting Triton: 0 s so far; loading classifier" in stream.getvalue())
    assert not [thread for thread in threading.enumerate() if thread.name == "reminders"]


@pytest.mark.parametrize("tables", [False, True])
def test_log_is_shown_with_or_without_tables(capsys, tables):
    logged(Display(tables=tables), LOG)
    assert capsys.readouterr().err.splitlines() == [f"triton | {line}" for line in (LOG if tables else LOG[:-1])]


def test_json_lines_have_time_and_level(capsys):
    shown = Display(as_json=True)
    with shown.waiting("starting Triton"):
        logged(shown, [LOG[0], f'E{HEAD} "unable to create\\na stream"', LOG[-1], ""])
    shown.say("ready: \u201copen\u201d")
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert all(event.pop("timestamp").endswith("Z") for event in events)
    assert events == [
        {"level": "info", "event": "up", "message": "starting Triton"},
        {"level": "info", "event": "triton", "message": "loading: classifier:1"},
        {"level": "error", "event": "triton", "message": "unable to create\\na stream"},
        {"level": "info", "event": "triton", "message": "| Model | Version |"},
        {"level": "info", "event": "up", "message": "ready: \u201copen\u201d"},
    ]


def test_log_file_has_the_chatter_and_models_and_errors_are_shown(capsys, tmp_path, monkeypatch):
    """The first line of an error is shown, once; the file's size is bounded."""
    failure = f'E{HEAD} "failed to load: boom\\n\\nAt:\\n  x"'
    lines = [
        *LOG,
        f'E{HEAD} "CudaDriverHelper has not been initialized."',
        f'E{HEAD} "Exit timeout expired. Exiting immediately."',
        f'W{HEAD} "a warning"',
        f'E{HEAD} "[markup] stays as it is"',
        failure,
        failure,
    ]
    path = tmp_path / "logs" / "triton.log"
    shown = Display(log_file=path)
    logged(shown, lines)
    loaded, *errors = capsys.readouterr().err.splitlines()
    assert loaded.startswith("gateway |   model preprocessor")
    assert errors == ["gateway | triton | [markup] stays as it is", "gateway | triton | failed to load: boom"]
    assert path.read_text().splitlines() == lines
    monkeypatch.setattr(display, "MAX_LOG_BYTES", 1_000)
    logged(shown, [f"line {number}" for number in range(1_000)])
    assert path.stat().st_size < 1_100
    assert "line 999" in path.read_text()
    shown.log_file.close()


def test_log_path_follows_the_xdg_specification(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert log_path(8080) == tmp_path / "triton-image-gateway" / "triton-8080.log"
    monkeypatch.setenv("XDG_STATE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert log_path(1) == tmp_path / ".local/state/triton-image-gateway/triton-1.log"


def test_output_of_a_command_is_passed_to_the_display():
    said = []
    script = "import sys; print('gateway | exporting', file=sys.stderr); print('as it is'); sys.exit(3)"
    assert run_aloud([sys.executable, "-I", "-S", "-c", script], said.append) == 3
    assert sorted(said) == ["as it is", "exporting"]


HOSTILE = "[/red]a\x1b[2J\nb\x9b\u202e:cat:"
SHOWN = r"[/red]a\x1b[2J\nb\x9b\u202e:cat:"


@pytest.mark.parametrize("terminal", [True, False])
def test_strings_and_cells_are_printed_as_text(terminal):
    """Markup, control characters and line breaks of a name have no effect."""
    screen = io.StringIO()
    console = PlainConsole(file=screen, force_terminal=terminal, color_system=None, width=100)
    table = Table(HOSTILE, box=None)
    table.add_row(HOSTILE)
    console.print(HOSTILE)
    console.print(table)
    assert [line.strip() for line in screen.getvalue().splitlines()] == [SHOWN] * 3


def test_lines_of_a_result_are_printed_as_text(capsys):
    emit(HOSTILE, "b")
    assert capsys.readouterr().out == f"{SHOWN}\nb\n"


@pytest.mark.parametrize(
    ("text", "alone"),
    [
        ('E{} "unable to create stream: CUDA driver version is insufficient for it"', True),
        ('W{} "failed to allocate pinned system memory: no pinned memory pool"', True),
        ('I{} "loading: echo:1"', False),
        ('E{} "failed to load: boom"', False),
    ],
)
def test_lines_about_missing_gpus(text, alone):
    assert concerns_a_gpu_alone(text.format(HEAD)) is alone
