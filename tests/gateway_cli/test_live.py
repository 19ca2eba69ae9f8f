"""The terminal display of `gateway up`."""

import io
from pathlib import Path

import pytest

from gateway_cli import live
from gateway_cli.live import LiveDisplay, log_path
from gateway_local.console import PlainConsole
from tests.processes import wait_for

HEAD = "1121 03:44:14.508741 16925 model_lifecycle.cc:472]"


@pytest.fixture
def screen():
    return io.StringIO()


@pytest.fixture
def display(screen, tmp_path):
    display = LiveDisplay(
        PlainConsole(file=screen, force_terminal=True, width=100, _environ={"TERM": "xterm"}),
        tmp_path / "logs" / "triton.log",
    )
    yield display
    display.close()


def test_display_shows_models_but_not_log_chatter(display, screen):
    display.log(f'triton | I{HEAD} "loading: echo:1"')
    display.log("triton | +-------+")
    display.log(f"triton | I{HEAD} \"successfully loaded 'echo'\"")
    assert screen.getvalue().startswith("gateway |   model echo")
    assert screen.getvalue().count("\n") == 1
    assert screen.getvalue().rstrip().endswith("s")


def test_relevant_errors_are_shown(display, screen):
    display.log(f'triton | E{HEAD} "CudaDriverHelper has not been initialized."')
    display.log(f'triton | E{HEAD} "[markup] stays as it is"')
    assert screen.getvalue() == "gateway | triton | [markup] stays as it is\n"


def test_whole_log_is_in_the_file(display):
    display.log("triton | one")
    display.log("triton | two")
    assert display.log_file.read_text() == "one\ntwo\n"


def test_log_file_size_is_bounded(display, monkeypatch):
    monkeypatch.setattr(live, "MAX_LOG_BYTES", 100)
    for number in range(1_000):
        display.log(f"line {number}")
    assert display.log_file.stat().st_size < 200
    assert "line 999" in display.log_file.read_text()


def test_spinner_is_shown_while_waiting(display, screen):
    with display.waiting("starting Triton"):
        wait_for(lambda: "starting Triton" in screen.getvalue())
        display.say("in between")
    assert "in between" in screen.getvalue()


def test_log_path_follows_the_xdg_specification(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert log_path(8080) == tmp_path / "triton-image-gateway" / "triton-8080.log"
    monkeypatch.setenv("XDG_STATE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert log_path(1) == Path(tmp_path, ".local/state/triton-image-gateway/triton-1.log")
