# ruff: noqa: T201 - a command prints
"""The command: `python -m tests.fuzz [--seconds 60] [--seed 0] [--only PNG]`."""

import argparse
import sys
import time

from tests.fuzz import http
from tests.fuzz.campaign import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to go on")
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="the same seed damages the same files the same way"
    )
    parser.add_argument("--only", default="", help="only samples whose name contains this, such as PNG")
    options = parser.parse_args()
    report = run(options.seconds, options.seed, options.only)
    mebibytes = (report.resident_bytes - report.resident_bytes_at_start) / 2**20
    print(f"seed {options.seed}: {report.files} files, memory {mebibytes:+.0f} MiB")
    print(f"slowest: {report.slowest_seconds:.3f} s, {report.slowest}")
    for outcome, count in report.outcomes.most_common():
        print(f"{count:8d}  {outcome}")
    for fault in report.faults:
        print(f"FAULT {fault}", file=sys.stderr)
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(http.main(sys.argv[2:]) if sys.argv[1:2] == ["http"] else main())
