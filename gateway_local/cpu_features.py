"""Instructions of this machine's processor that decide which precision is worth trying."""

from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def has_bf16(path: Path = CPUINFO) -> bool:
    """Whether this processor multiplies numbers of type bfloat16; False if that is unknown."""
    text = _text(path)
    return "avx512_bf16" in text or "amx_bf16" in text


def cpu_name(path: Path = CPUINFO) -> str:
    """The processor's name; empty if that is unknown."""
    lines = (line.partition(":") for line in _text(path).splitlines())
    return next((value.strip() for name, _, value in lines if name.strip() == "model name"), "")


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
