# ruff: noqa: T201 - a command prints
"""Damaged input for the gateway, at random until the time is over; `make fuzz ARGS="http --seconds 600"`.

python -m tests.fuzz [--only PNG]             images of every form, in a child process
python -m tests.fuzz http                     requests and WebSockets over raw sockets, to a gateway in its own process

The exit status is 1 if there was a fault; each is printed with the seed and the number that make it again.
"""

import argparse
import sys
import time

from tests.fuzz import campaign, http, service


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("images", "http"), default="images")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to go on")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the same seed damages the same way")
    parser.add_argument("--only", default="", help="images: samples whose name contains this, such as PNG")
    options = parser.parse_args()
    if options.what == "images":
        return _images(options.seconds, options.seed, options.only)
    return _requests(http.run(options.seconds, options.seed), options.seed)


def _images(seconds: float, seed: int, only: str) -> int:
    report = campaign.run(seconds, seed, only)
    mebibytes = (report.resident_bytes - report.resident_bytes_at_start) / 2**20
    print(f"seed {seed}: {report.files} files, memory {mebibytes:+.0f} MiB")
    print(f"slowest: {report.slowest_seconds:.3f} s, {report.slowest}")
    for outcome, count in report.outcomes.most_common():
        print(f"{count:8d}  {outcome}")
    for fault in report.faults:
        print(f"FAULT {fault}", file=sys.stderr)
    return 1 if report.faults else 0


def _requests(report: service.Report, seed: int) -> int:
    print(
        f"seed {seed}: {report.requests} connections, longest pause of the event loop "
        f"{report.longest_pause_seconds * 1e3:.0f} ms (0: below 50), memory {report.grown_bytes / 1e6:+.0f} MB"
    )
    for answer, count in report.answers.most_common():
        print(f"{count:8d}  {answer}")
    for fault in report.faults:
        print(f"FAULT {fault}", file=sys.stderr)
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
