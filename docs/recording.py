"""Records README's first commands in a terminal, as an animation: docs/images/first-service.svg.

.venv/bin/python docs/recording.py

Run it where `make up` has run before: the recording is of a later start. Port 8080 must be free.
"""

import os
import pty
import re
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path

PROJECT = Path(__file__).parents[1]
SHOWN_HOME, SHOWN_PROJECT = "/home/you", "/home/you/triton-image-gateway"
START = "make up"
READY = "Ctrl-C stops everything"
CURL = "curl -F files=@docs/examples/cat.jpg 'http://127.0.0.1:8080/predict?top_k=1'"
COLUMNS, ROWS = 112, 20
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
TYPED_SECONDS = 0.04
PAUSE_SECONDS = 2.0
"""Pauses are cut to this length."""
SHOWN_SECONDS = 5.0
"""How long the end is shown before the recording starts again."""
FONT, LINE = 12, 17
CHARACTER = 7.23

Event = tuple[float, str]


def started(command: str) -> int:
    """Start a command in a new terminal; returns the terminal's file descriptor."""
    process, terminal = pty.fork()
    if process == 0:
        os.environ |= {"COLUMNS": str(COLUMNS), "LINES": str(ROWS), "TERM": "xterm"}
        os.execlp("bash", "bash", "-c", command)  # noqa: S606 - fixed commands
    return terminal


def printed(terminal: int, until: str = "") -> Iterator[str]:
    """What appears in a terminal, up to a text if one is given, else until its command ends."""
    seen = ""
    while not until or until not in seen:
        try:
            text = os.read(terminal, 65_536).decode(errors="replace")
        except OSError:  # the command has ended
            return
        seen += text
        yield text.replace(str(PROJECT), SHOWN_PROJECT).replace(str(Path.home()), SHOWN_HOME)


def typed(command: str) -> Iterator[str]:
    """A prompt, and a command as a person types it."""
    yield "$ "
    for character in command:
        time.sleep(TYPED_SECONDS)
        yield character
    yield "\r\n"


def record() -> list[Event]:
    """Seconds and text of both commands, without long pauses."""
    events: list[Event] = []
    now, last = 0.0, time.monotonic()

    def take(texts: Iterator[str]) -> None:
        nonlocal now, last
        for text in texts:
            moment = time.monotonic()
            now, last = now + min(PAUSE_SECONDS, moment - last), moment
            events.append((now, text))

    take(typed(START))
    service = started(START)
    take(printed(service, READY))
    take(iter(["\r\n# in a second terminal\r\n"]))
    take(typed(CURL))
    take(printed(started(CURL)))
    os.write(service, b"\x03")
    for _ in printed(service):
        pass
    return events


def lines_of(events: list[Event]) -> list[list[Event]]:
    """For each line of the screen, its texts and when each appears; without colours."""
    lines: list[list[Event]] = [[]]
    text = ""
    for now, part in events:
        for piece in re.split(r"(\r\n|\n|\r)", CONTROL.sub("", part)):
            if piece in ("\r\n", "\n"):
                lines.append([])
                text = ""
            elif piece == "\r":
                text = ""
            elif piece:
                text += piece
                while len(text) > COLUMNS:
                    lines[-1].append((now, text[:COLUMNS]))
                    lines.append([])
                    text = text[COLUMNS:]
                lines[-1].append((now, text))
    return lines


def svg(events: list[Event]) -> str:
    """An animation of the screen, which grows by one line after the other. Without animations, its end is shown."""
    lines = [line for line in lines_of(events) if line]
    seconds = events[-1][0] + SHOWN_SECONDS
    width, height = round(COLUMNS * CHARACTER + 24), LINE * len(lines) + 24
    style, body = [], []
    for row, line in enumerate(lines):
        for number, (start, text) in enumerate(line):
            end = line[number + 1][0] if number + 1 < len(line) else seconds
            if end - start < TYPED_SECONDS / 2:
                continue
            name = f"f{row}_{number}"
            shown, hidden = 100 * start / seconds, 100 * end / seconds
            hide = f"{hidden:.2f}%{{opacity:0}}" if end < seconds else ""
            style.append(f"@keyframes {name}{{0%{{opacity:0}}{shown:.2f}%{{opacity:1}}{hide}}}")
            still = "" if end == seconds else ' opacity="0"'
            body.append(
                f'<text x="12" y="{24 + LINE * row}" xml:space="preserve"{still} '
                f'style="animation:{name} {seconds:.1f}s step-end infinite">{escape(text)}</text>'
            )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-size="{FONT}" fill="#e2e8f0"'
    font = 'font-family="ui-monospace,SFMono-Regular,Menlo,DejaVu Sans Mono,monospace">'
    back = f'<rect width="{width}" height="{height}" rx="8" fill="#0f172a"/>'
    return "\n".join([f"{head} {font}", f"<style>{''.join(style)}</style>", back, *body, "</svg>\n"])


def main() -> None:
    """Record, and write the animation."""
    (Path(__file__).parent / "images" / "first-service.svg").write_text(svg(record()))


if __name__ == "__main__":
    main()
