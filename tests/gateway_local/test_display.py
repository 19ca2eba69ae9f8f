"""What is said where nothing moves: every line, and from time to time that something is still awaited."""

import json
import sys
import threading

import pytest

from gateway_local import display
from gateway_local.display import JsonLines, Lines, Reminders
from gateway_local.up import run_aloud

HEAD = "1122 15:46:36.417382 507 model_lifecycle.cc:472]"
PATIENCE_SECONDS = 60


class Heard:
    """Lines that were said, and a moment to wait for."""

    def __init__(self, awaited: str) -> None:
        self.lines: list[str] = []
        self._awaited = awaited
        self.came = threading.Event()

    def __call__(self, text: str) -> None:
        self.lines.append(text)
        if self._awaited in text:
            self.came.set()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "REMIND_SECONDS", 0.01)


def test_step_in_progress_is_reported_at_once_and_periodically():
    heard = Heard("s so far")
    with Reminders(heard).waiting("starting Triton"):
        assert heard.lines[0] == "starting Triton"
        assert heard.came.wait(PATIENCE_SECONDS)
    assert "starting Triton: 0 s so far" in heard.lines


def test_reminder_names_only_models_still_loading():
    heard = Heard("loading classifier")
    lines = Lines(heard, lambda _: None)
    lines.log(f'triton | I{HEAD} "loading: classifier:1"')
    lines.log(f'triton | I{HEAD} "loading: preprocessor:1"')
    lines.log(f"triton | I{HEAD} \"successfully loaded 'preprocessor'\"")
    with lines.waiting("starting Triton"):
        assert heard.came.wait(PATIENCE_SECONDS)
    assert "preprocessor" not in "".join(heard.lines)


def test_reminders_stop_with_the_step():
    heard = Heard("s so far")
    with Reminders(heard).waiting("starting Triton"):
        assert heard.came.wait(PATIENCE_SECONDS)
    assert not [thread for thread in threading.enumerate() if thread.name == "reminders"]


def test_tritons_log_is_passed_on_line_by_line():
    said, logged = [], []
    Lines(said.append, logged.append).log("triton | one")
    assert (said, logged) == ([], ["triton | one"])


def test_json_reminder_is_an_event(capsys: pytest.CaptureFixture[str]):
    lines = JsonLines()
    came = threading.Event()
    lines._reminders._say = lambda text: (lines.say(text), "so far" in text and came.set())
    with lines.waiting("starting Triton"):
        assert came.wait(PATIENCE_SECONDS)
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert {event["event"] for event in events} == {"up"}
    assert any("so far" in event["message"] for event in events)


def test_output_of_a_command_is_passed_to_the_display():
    said = []
    script = "import sys; print('gateway | exporting', file=sys.stderr); print('as it is'); sys.exit(3)"
    assert run_aloud([sys.executable, "-I", "-S", "-c", script], said.append) == 3
    assert sorted(said) == ["as it is", "exporting"]
