"""The display of a start: the console, the status lines, and the events of Triton's log."""

import io
import json
import sys
import threading

import pytest
from rich.table import Table

from gateway.command_line.terminal import emit
from gateway_local import display
from gateway_local.console import PlainConsole, plain
from gateway_local.display import JsonLines, Lines, Reminders
from gateway_local.server_log import concerns_a_gpu_alone
from gateway_local.up import run_aloud
from tests.processes import wait_for

HEAD = "1122 15:46:36.417382 507 model_lifecycle.cc:472]"


@pytest.fixture(autouse=True)
def short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "REMIND_SECONDS", 0.01)


def test_step_is_reported_at_once_and_periodically_until_it_ends():
    said: list[str] = []
    with Reminders(said.append).waiting("starting Triton"):
        assert said[0] == "starting Triton"
        wait_for(lambda: said[1:])
    assert said[1] == "starting Triton: 0 s so far"
    assert not [thread for thread in threading.enumerate() if thread.name == "reminders"]


def test_reminder_names_only_models_still_loading_and_the_log_is_passed_on():
    said: list[str] = []
    logged: list[str] = []
    lines = Lines(said.append, logged.append)
    log = [
        f'triton | I{HEAD} "loading: classifier:1"',
        f'triton | I{HEAD} "loading: preprocessor:1"',
        f"triton | I{HEAD} \"successfully loaded 'preprocessor'\"",
    ]
    for line in log:
        lines.log(line)
    assert (said, logged) == ([], log)
    with lines.waiting("starting Triton"):
        wait_for(lambda: said[1:])
    assert said[1].endswith(" s so far; loading classifier")


def test_json_reminder_is_an_event(monkeypatch: pytest.MonkeyPatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with JsonLines().waiting("starting Triton"):
        wait_for(lambda: "so far" in stream.getvalue())
    assert {json.loads(line)["event"] for line in stream.getvalue().splitlines()} == {"up"}


def test_output_of_a_command_is_passed_to_the_display():
    said = []
    script = "import sys; print('gateway | exporting', file=sys.stderr); print('as it is'); sys.exit(3)"
    assert run_aloud([sys.executable, "-I", "-S", "-c", script], said.append) == 3
    assert sorted(said) == ["as it is", "exporting"]


def test_json_lines_have_time_and_level(capsys, monkeypatch):
    monkeypatch.setattr(display, "REMIND_SECONDS", 60.0)
    lines = JsonLines()
    with lines.waiting("starting Triton"):
        lines.log('triton | I1122 15:46:36.417382 507 model_lifecycle.cc:472] "loading: classifier:1"')
        lines.log('triton | E1122 15:48:52.020990 507 scheduler.cc:1468] "unable to create\\na stream"')
        lines.log("triton | | Model | Version |")
        lines.log("triton | ")
    lines.say("ready: \u201copen\u201d")
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert all(event.pop("timestamp").endswith("Z") for event in events)
    assert events == [
        {"level": "info", "event": "up", "message": "starting Triton"},
        {"level": "info", "event": "triton", "message": "loading: classifier:1"},
        {"level": "error", "event": "triton", "message": "unable to create\\na stream"},
        {"level": "info", "event": "triton", "message": "| Model | Version |"},
        {"level": "info", "event": "up", "message": "ready: \u201copen\u201d"},
    ]


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
    console.print(plain(HOSTILE))
    assert [line.strip() for line in screen.getvalue().splitlines()] == [SHOWN] * 4


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
