"""The process of `gateway serve`, which keeps its workers running.

python -m gateway.server.supervisor LISTENER PLAN    the descriptor of a bound socket, and a Plan in JSON

Standard library only: it takes 19 MB. Code that needs the settings runs in a separate process, `gateway.worker`.
"""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from gateway.machine.service_record import ServiceRecord
from gateway.server.workers import Plan, Refused, Workers, hung_up

POLL_SECONDS = 0.2
PLAN_SECONDS = 60.0
LEVELS = {"worker_died": "warning", "reload_failed": "error"}


def main() -> None:
    """Run workers until SIGTERM or SIGINT; SIGHUP replaces them."""
    plan = Plan.of(json.loads(sys.argv[2]))
    asked: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: asked.append(number))

    record = ServiceRecord(plan.address[1], command="serve", host=plan.address[0])

    def report(event: str, text: str, fields: Mapping[str, object]) -> None:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        line = {"timestamp": now, "level": LEVELS.get(event, "info"), "event": event, **fields}
        with contextlib.suppress(OSError):  # a log that cannot be written must not stop a service
            sys.stderr.write(f"gateway | {text}\n" if plan.log_as_text else json.dumps(line) + "\n")
        record.follow(event, fields)

    workers = Workers(socket.socket(fileno=int(sys.argv[1])), report)
    workers.start(plan)
    terminal = sys.stderr.isatty()
    replan = (sys.executable, "-m", "gateway.worker", "--plan")
    try:
        while workers.failure is None and not {signal.SIGINT, signal.SIGTERM} & set(asked):
            if signal.SIGHUP in asked:
                asked.remove(signal.SIGHUP)
                if hung_up(terminal):
                    break
                workers.reload(lambda: replanned(replan))
            workers.check()
            time.sleep(POLL_SECONDS)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: workers.kill())
        workers.stop()
        record.remove()
    sys.exit(workers.failure or 0)


def replanned(command: Sequence[str]) -> Plan:
    """The plan by the settings as they are now, which a command prints, or else why not; raises Refused."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=PLAN_SECONDS, check=True
        )
        answer = json.loads(done.stdout)
    except (subprocess.SubprocessError, OSError, ValueError) as exc:
        raise Refused(f"the settings could not be read: {exc}") from exc
    if isinstance(answer, str):
        raise Refused(answer)
    return Plan.of(answer)


if __name__ == "__main__":
    main()
