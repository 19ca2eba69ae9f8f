"""The processor of this machine, and its instructions that decide which precisions are worth trying."""

from pathlib import Path
from typing import Any

from gateway.machine.cores import usable_cores

CPUINFO = Path("/proc/cpuinfo")


def has_bf16(path: Path = CPUINFO) -> bool:
    """Whether this processor multiplies numbers of type bfloat16; False if that is unknown."""
    text = _text(path)
    return "avx512_bf16" in text or "amx_bf16" in text


def cpu_name(path: Path = CPUINFO) -> str:
    """The processor's name; empty if that is unknown."""
    lines = (line.partition(":") for line in _text(path).splitlines())
    return next((value.strip() for name, _, value in lines if name.strip() == "model name"), "")


def machine() -> dict[str, Any]:
    """The machine's properties that change measurements: the processor, and how many cores this process may use."""
    return {"cpu": cpu_name(), "cores": usable_cores()}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
