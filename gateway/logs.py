"""One event a request, with fields: JSON lines in a container, readable text on a terminal."""

import logging
import sys

import structlog

from gateway.settings import LogFormat, Settings


def configure_logs(settings: Settings) -> None:
    """Send structlog's events and the standard library's records to stderr in one format."""
    as_text = settings.log_format is LogFormat.TEXT or (settings.log_format is LogFormat.AUTO and sys.stderr.isatty())
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.ExtraAdder(),
        _without_colours,
    ]
    render: list[structlog.types.Processor]
    if as_text:
        render = [
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(),
                pad_event_to=0,
                # The default one shows local variables, and so the headers and the images of a request.
                exception_formatter=structlog.dev.plain_traceback,
            )
        ]
    else:
        render = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    level = int(logging.getLevelName(settings.log_level.value.upper()))
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # What is wrong with a client's form is in the answer to the client.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    structlog.configure(
        processors=[*shared[:-2], *render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def _without_colours(
    _: structlog.types.WrappedLogger, __: str, event: structlog.types.EventDict
) -> structlog.types.EventDict:
    event.pop("color_message", None)  # uvicorn's message once more, with colours
    return event
