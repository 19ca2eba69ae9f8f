"""Finds out whether a decoded JPEG was damaged.

libjpeg decodes a JPEG whose compressed data is damaged: it makes up what is missing, and warns. OpenCV does not return
these warnings, but libjpeg prints the first one of each image to stderr (`emit_message` in its jerror.c).
The same module as the preprocessor's, for the images that the gateway decodes.
"""

import os
import re

WARNING = re.compile(rb"(Corrupt JPEG data|Premature end of JPEG file|Inconsistent progression).*\n?")
"""libjpeg's warnings of damaged data; others, such as the warning of an unknown JFIF version, do not affect pixels."""


class DamageDetector:
    """Reads stderr during a `with` block, and passes on everything but libjpeg's warnings.

    `damaged` is whether there was such a warning in the last block. All threads of a process share stderr, so only one
    may print.
    """

    def __init__(self) -> None:
        self.damaged = False
        self._stderr = os.dup(2)
        self._printed = os.memfd_create("stderr")

    def __enter__(self) -> None:
        os.dup2(self._printed, 2)

    def __exit__(self, *_: object) -> None:
        os.dup2(self._stderr, 2)
        self.damaged = False
        nbytes = os.lseek(self._printed, 0, os.SEEK_CUR)
        if not nbytes:
            return
        others, warnings = WARNING.subn(b"", os.pread(self._printed, nbytes, 0))
        self.damaged = warnings > 0
        os.lseek(self._printed, 0, os.SEEK_SET)
        os.ftruncate(self._printed, 0)
        if others:
            os.write(self._stderr, others)
