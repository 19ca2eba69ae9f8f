"""Text files that other people and programs write: how they are opened and decoded."""

import codecs
import stat
from pathlib import Path

_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_text(path: Path, *, max_bytes: int, newline: str | None = None) -> str:
    r"""Read a text file. Raises OSError if it is larger, not a regular file or not UTF-8.

    Each line ends with "\n", whether the file has "\n", "\r\n" or "\r"; `newline=""` keeps what the file has.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):  # before it is opened: that waits for a FIFO's writer, and may move a tape
        raise OSError("it is not a regular file")
    if found.st_size > max_bytes:
        raise OSError(f"{path} is larger than {max_bytes} bytes")
    text = decoded(path.read_bytes())
    return text if newline == "" else text.replace("\r\n", "\n").replace("\r", "\n")


def decoded(data: bytes) -> str:
    """The text of a file in UTF-8, without its byte order mark; raises OSError that names the encoding."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        if data.startswith(_UTF_16):
            raise OSError("it is UTF-16, not UTF-8 text: save it as UTF-8") from exc
        raise OSError(f"it is not UTF-8 text (invalid byte at {exc.start}): save it as UTF-8") from exc
