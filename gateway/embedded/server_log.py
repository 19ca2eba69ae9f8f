"""Reading Triton's log, in its default format."""

import re
from collections.abc import Iterable

_RECORD = re.compile(r'^([IWEF])\d{4} [\d:.]+ \d+ \S+\] "?(.*?)"?$')
_PROTOBUF_ERROR = re.compile(r"^\[libprotobuf ERROR \S+\] ")
_NO_GPU = ("CudaDriverHelper has not been initialized", "CUDA driver version is insufficient")
"""What Triton complains of on every machine without a GPU."""
_ADVICE = {
    "unsupported gpu id": "The model asks for a GPU that is not here: take gpus out of its instance_group, and write "
    "KIND_AUTO for KIND_GPU, which takes every GPU or else the CPU.",
}
"""What to do about complaints that do not say so themselves."""


def error_lines(log: Iterable[str]) -> list[str]:
    """The errors in a log of Triton's default format, each with the lines that continue it, without repeats."""
    found: list[str] = []
    in_error = False
    for line in log:
        record = _RECORD.match(line)
        if record:
            in_error = record[1] in "EF" and not any(complaint in record[2] for complaint in _NO_GPU)
        text = record[2] if record else line
        if in_error or _PROTOBUF_ERROR.match(line):
            # Inside a message Triton writes the end of a line as \n.
            parts = _PROTOBUF_ERROR.sub("", text).split("\\n")
            found += [part for part in parts if part.strip() and part not in found]
    return found


def advice(reasons: Iterable[str]) -> list[str]:
    """What to do about errors, where that is known."""
    text = "\n".join(reasons)
    return [known for complaint, known in _ADVICE.items() if complaint in text]
