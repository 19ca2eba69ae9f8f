"""Imports structlog without rich: import this first in a program that needs no coloured tracebacks.

structlog.dev imports rich where it is installed: 5 MB and 75 ms of processor time for each process.
"""

import sys

if "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]  # "import rich" fails
    import structlog  # noqa: F401

    del sys.modules["rich"]
