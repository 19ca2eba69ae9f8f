"""Logs: JSON lines for machines, readable text for people, one format for all loggers."""

import json
import os
import pty
import re
from typing import Any

import httpx
import pytest

from gateway.logs import (
    MAX_VALUE_CHARACTERS,
    REPEATS_PER_MINUTE,
    Repeats,
)
from tests import warm
from tests.gateway.api.in_child import logged
from tests.processes import environment, running_gateway, wait_for

PREAMBLE = """
import logging, sys, warnings, structlog
from gateway.errors import AlreadyLogged
from gateway.logs import configure_logs
from tests.settings import Settings
configure_logs(Settings(_env_file=None, log_format=sys.argv[1]))
log = structlog.get_logger("gateway")
structlog.contextvars.bind_contextvars(request_id="r1", trace_id="t1")
"""
TEXT_LINE = re.compile(r"\d\d:\d\d:\d\d\.\d{3} \[(info|warning|error) *\] ")


def write(code: str, log_format: str = "json", *arguments: str) -> str:
    """The log of some code in a separate process."""
    done = warm.run(PREAMBLE + code, [log_format, *arguments], environment=environment())
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return done.stderr


def on_terminal(code: str) -> str:
    """The log of some code where stderr is a terminal."""
    reader, writer = pty.openpty()
    done = warm.run(PREAMBLE + code, ["auto"], environment=environment(), stderr=writer)
    os.close(writer)
    assert done.returncode == 0
    with os.fdopen(reader, "rb") as terminal:
        return terminal.read1(65_536).decode()


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_json_line_begins_with_common_fields_and_ends_with_ids():
    (event,) = events(write('log.info("request", status=200, path="/predict")'))
    assert list(event) == ["timestamp", "level", "event", "status", "path", "request_id", "trace_id"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", event["timestamp"])
    assert event.items() >= {"level": "info", "event": "request", "status": 200, "trace_id": "t1"}.items()


def test_standard_records_and_warnings_have_the_same_format():
    code = """
logging.getLogger("uvicorn.error").info("Started %s", "it", extra={"color_message": "no", "port": 1})
warnings.warn("old")
log.debug("unheard")
logging.getLogger("x").debug("unheard")
"""
    started, warned = events(write(code))
    expected = {"event": "Started it", "level": "info", "port": 1, "request_id": "r1"}
    assert {name: started[name] for name in started if name not in {"timestamp", "trace_id"}} == expected
    assert warned["level"] == "warning"
    assert "UserWarning: old" in warned["event"]


def test_server_does_not_repeat_logged_exceptions():
    code = """
try:
    try:
        1 / 0
    except Exception as exc:
        raise AlreadyLogged from exc
except AlreadyLogged:
    logging.getLogger("uvicorn.error").exception("Exception in ASGI application")
"""
    assert write(code) == ""


def test_unexpected_exception_is_in_the_log_once():
    """The request's headers are not in its traceback."""
    asked = [("GET", "/models", {"Authorization": "Bearer somebody"})]
    ((status, _, body),), log = logged(asked, fault="boom", log_format="json")
    exception, request = events(log)
    assert (exception["event"], request["event"]) == ("unexpected_error", "request")
    assert (status, request["status"], request["code"]) == (500, 500, "internal_error")
    assert json.loads(body)["request_id"] == request["request_id"]
    assert "somebody" not in log
    assert exception["exception"].endswith("RuntimeError: boom")
    assert log.count("boom") == exception["exception"].count("boom")
    assert exception["request_id"] == request["request_id"]


def test_text_format_is_one_readable_line():
    text = write('log.info("request", status=200, total_seconds=0.0123456, read_seconds=4e-05)', "text")
    assert TEXT_LINE.match(text)
    assert text.endswith("request status=200 total_seconds=0.0123 read_seconds=0.0000 request_id=r1 trace_id=t1\n")


def test_terminal_gets_coloured_text_and_a_file_json():
    code = 'log.info("request", status=200)'
    assert "\x1b[" in on_terminal(code)
    assert "request" in on_terminal(code)
    assert events(write(code, "auto"))[0]["status"] == 200


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_client_text_cannot_forge_lines_or_control_terminals(log_format):
    code = r'log.info("request", path="/\n\x1b[2J\r\x9b1A\x00é")'
    text = write(code, log_format)
    assert text.count("\n") == 1
    assert all(character.isprintable() for character in text.rstrip("\n"))


@pytest.mark.slow
def test_gateway_with_workers_logs_json_lines_only(tmp_path):
    with running_gateway(tmp_path / "log", wait_ready=False, workers=2, triton_url="127.0.0.1:9") as gateway:
        wait_for(lambda: gateway.log.read_text().count("Application startup complete") == 2)
        httpx.get(f"{gateway.url}/nothing", timeout=60)
    told = events(gateway.log.read_text())
    said = [event["event"] for event in told]
    assert not any(event.startswith("Uvicorn running on") for event in said)  # before anything can be classified
    assert all(list(event)[:3] == ["timestamp", "level", "event"] for event in told)
    (request,) = [event for event in told if event["event"] == "request"]
    assert (request["path"], request["status"]) == ("/nothing", 404)


def test_client_made_text_in_an_event_is_cut():
    """Its beginning and its end stay."""
    (event,) = events(write('log.info("request", path="a" * 5_000 + "z" * 5_000, cause="c" * 1_024)'))
    assert len(event["path"]) == MAX_VALUE_CHARACTERS + len(" … ")
    assert (event["path"][0], event["path"][-1]) == ("a", "z")
    assert event["cause"] == "c" * MAX_VALUE_CHARACTERS


def test_repeated_traceback_is_left_out():
    """The event itself stays, with the error's message: none is lost."""
    code = """
for number in range(13):
    try:
        raise KeyError(f"bug {number}")
    except KeyError:
        log.exception("unexpected_error")
try:
    raise KeyError("elsewhere")
except KeyError:
    logging.getLogger("asyncio").exception("callback")
"""
    lines = events(write(code))
    assert ["exception" in event for event in lines] == [True] * REPEATS_PER_MINUTE + [False] * 3 + [True]
    assert [event["error"] for event in lines if "error" in event] == [f"KeyError: 'bug {n}'" for n in (10, 11, 12)]


def test_repeated_warning_of_a_library_is_left_out():
    code = """
for number in range(20):
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    logging.getLogger("uvicorn.error").info("open")
logging.getLogger("uvicorn.error").warning("another")
"""
    lines = [event["event"] for event in events(write(code))]
    assert lines.count("Invalid HTTP request received.") == REPEATS_PER_MINUTE
    assert (lines.count("open"), lines.count("another")) == (20, 1)


def test_repeats_are_allowed_again_after_a_minute():
    now = 0.0
    repeats = Repeats(lambda: now)
    assert [repeats.allow("x") for _ in range(REPEATS_PER_MINUTE + 1)] == [True] * REPEATS_PER_MINUTE + [False]
    assert repeats.allow("y")
    now = 60.0
    assert repeats.allow("x")


LOGGER = """
for number in range(3):
    log.warning("event", number=number)
    logging.getLogger("uvicorn.error").warning("record")
print("all logged")
"""


def full_disk() -> int:
    """A file whose writes fail as on a full disk."""
    return os.open("/dev/full", os.O_WRONLY)


def closed_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize("opened", [full_disk, closed_pipe])
def test_failed_write_does_not_stop_what_logs(opened):
    stderr = opened()
    done = warm.run(PREAMBLE + LOGGER, ["text"], environment=environment(), stderr=stderr)
    os.close(stderr)
    assert done.stdout == "all logged\n"
