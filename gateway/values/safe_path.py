"""Names that come from outside, such as a bucket's objects or an archive's members, as paths below a folder.

Every such name becomes a `SafePath` before it is joined to a folder.
"""

import os
import re
from pathlib import Path
from typing import Self

from gateway.errors import UserError

MAX_PATH_BYTES = 4096
"""Linux's PATH_MAX."""
MAX_NAME_BYTES = 255
"""Linux's NAME_MAX, of each part of a path."""
_DRIVE = re.compile(r"[A-Za-z]:")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class UnsafePath(UserError, ValueError):
    """A name from outside that is not a relative path of files; the message quotes it."""


class SafePath(str):
    """A relative POSIX path that stays below the folder it is joined to.

    The constructor raises UnsafePath for an absolute path, a drive letter, a backslash, a control character, text that
    UTF-8 cannot represent, an empty part, the parts "." and "..", and for parts and paths that are too long.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        """Check a name."""
        if reason := _fault(text):
            shown = text if len(text) <= MAX_NAME_BYTES else f"{text[:MAX_NAME_BYTES]}…"
            raise UnsafePath(f"the name {shown!r} {reason}")
        return super().__new__(cls, text)

    @property
    def name(self) -> str:
        """The last part."""
        return self.rpartition("/")[2]

    @property
    def top(self) -> str:
        """The first part."""
        return self.partition("/")[0]

    def below(self, folder: Path) -> Path:
        """The path in `folder`; raises UnsafePath if symbolic links in the folder lead out of it."""
        path = folder / self
        inside, real = os.path.realpath(folder), os.path.realpath(path)
        if os.path.commonpath([inside, real]) != inside:
            raise UnsafePath(f"{str(path)!r} is a link, or is below one, that leads out of {folder}")
        return path


def safe_name(text: str) -> SafePath:
    """A name of one part; raises UnsafePath, also if it has several."""
    name = SafePath(text)
    if "/" in name:
        raise UnsafePath(f"the name {text!r} has a /, and the name of one file or folder is expected")
    return name


def _fault(text: str) -> str:
    """Why a name is not a path of ours; "" if it is one."""
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        return "is not valid text"
    if len(encoded) > MAX_PATH_BYTES:
        return f"has more than {MAX_PATH_BYTES} bytes"
    if _CONTROL.search(text):
        return "has a control character"
    if "\\" in text:
        return "has a backslash"
    if text.startswith("/") or _DRIVE.match(text):
        return "is an absolute path"
    for part in encoded.split(b"/"):
        if part in {b"", b".", b".."}:
            return f"has the part {part.decode()!r}, and may lead to another folder"
        if len(part) > MAX_NAME_BYTES:
            return f"has a part of more than {MAX_NAME_BYTES} bytes"
    return ""
