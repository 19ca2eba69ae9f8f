"""One log event per request, with fields: JSON lines in a container, readable text on a terminal.

docs/reference/log.md describes each event and field.
"""

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Hashable
from datetime import datetime
from traceback import extract_tb
from typing import TextIO, cast

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from gateway.errors import AlreadyLogged
from gateway.log_stream import LogStream
from gateway.settings import LogFormat, Settings

log = structlog.get_logger("gateway")

REPEATS_PER_MINUTE = 10
"""Tracebacks from one line of code, and warnings with one text, that are logged per minute."""
MAX_VALUE_CHARACTERS = 1_024
"""Longest text in an event: some come from clients or Triton. Tracebacks may be longer."""
_MINUTE_SECONDS, _MAX_KINDS = 60.0, 1_000

# Text from clients must not move a terminal's cursor; line ends are kept, since tracebacks have them.
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


class Repeats:
    """Limits how many events of one kind are logged per minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._counts: Counter[Hashable] = Counter()

    def allow(self, kind: Hashable) -> bool:
        """Count one event; returns False after REPEATS_PER_MINUTE of its kind."""
        now = self._clock()
        if now - self._began >= _MINUTE_SECONDS or len(self._counts) > _MAX_KINDS:
            self._began = now
            self._counts.clear()
        self._counts[kind] += 1
        return self._counts[kind] <= REPEATS_PER_MINUTE

    def shorten(self, _: WrappedLogger, __: str, event: EventDict) -> EventDict:
        """Structlog processor: shorten long texts, and omit the traceback of a repeated error."""
        for name, value in event.items():
            if isinstance(value, str) and len(value) > MAX_VALUE_CHARACTERS:
                half = MAX_VALUE_CHARACTERS // 2  # the reason is often at the end of Triton's message
                event[name] = f"{value[:half]} … {value[-half:]}"
        error = _exception(event.get("exc_info"))
        if error is not None and not self.allow((type(error), *map(tuple, extract_tb(error.__traceback__, limit=-1)))):
            event.pop("exc_info")
            event["error"] = f"{type(error).__name__}: {error}"[:MAX_VALUE_CHARACTERS]
            event["traceback"] = f"left out: more than {REPEATS_PER_MINUTE} in this minute"
        return event

    def filter(self, record: logging.LogRecord) -> bool:
        """Logging filter: omit repeated warnings of other libraries."""
        return record.levelno < logging.WARNING or bool(record.exc_info) or self.allow((record.name, record.msg))


def _exception(exc_info: object) -> BaseException | None:
    if exc_info is True:
        return sys.exc_info()[1]
    if isinstance(exc_info, tuple):
        return cast("BaseException | None", exc_info[1])
    return exc_info if isinstance(exc_info, BaseException) else None


def as_text(settings: Settings) -> bool:
    """Whether the log is text for people, and not JSON."""
    return settings.log_format is LogFormat.TEXT or (settings.log_format is LogFormat.AUTO and sys.stderr.isatty())


def configure_logs(settings: Settings) -> None:
    """Send structlog's events, the standard library's records and warnings to stderr in one format."""
    begin: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    repeats = Repeats()
    end = [repeats.shorten, *(_text(colours=sys.stderr.isatty()) if as_text(settings) else _json())]
    level = int(logging.getLevelName(settings.log_level.value.upper()))
    stream = cast("TextIO", LogStream(sys.stderr))
    handler = logging.StreamHandler(stream)
    handler.setLevel(level)
    handler.addFilter(repeats)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*begin, structlog.stdlib.ExtraAdder(), _without_colours],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *end],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.captureWarnings(capture=True)
    logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)
    logging.getLogger("websockets.server").setLevel(logging.WARNING)  # the gateway logs its own event for each stream
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs each request, with its address
    server = logging.getLogger("uvicorn.error")
    server.addFilter(_is_new)
    server.addFilter(_is_true)
    structlog.configure(
        processors=[*begin, *end],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )


def _json() -> list[Processor]:
    return [_in_order, structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=repr)]


def _text(*, colours: bool) -> list[Processor]:
    renderer = structlog.dev.ConsoleRenderer(
        colors=colours,
        pad_event_to=0,
        sort_keys=False,
        # The default formatter shows local variables, including the headers and images of a request.
        exception_formatter=structlog.dev.plain_traceback,
    )
    return [_in_order, _for_people, renderer]


def _in_order(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Put the fields of every line first, and the ids of the request last."""
    first = {name: event.pop(name) for name in ("timestamp", "level", "event")}
    last = {name: event.pop(name) for name in ("request_id", "trace_id") if name in event}
    return {**first, **event, **last}


def _for_people(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    event["timestamp"] = datetime.now().astimezone().strftime("%H:%M:%S.%f")[:-3]
    return {name: _readable(value) for name, value in event.items()}


def _readable(value: object) -> object:
    if isinstance(value, str):
        return value.translate(_CONTROL)
    return f"{value:.4f}" if isinstance(value, float) else value


def _without_colours(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    event.pop("color_message", None)  # uvicorn repeats its message there, with colours
    return event


def _is_true(record: logging.LogRecord) -> bool:
    """Drop uvicorn's line that it is running: the socket is open then, but images are not classified yet."""
    return not record.getMessage().startswith("Uvicorn running on")


def _is_new(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], AlreadyLogged))
