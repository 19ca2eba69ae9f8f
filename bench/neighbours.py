"""`python -m bench.neighbours`: thumbnails of one client beside images of 50 megapixels of many others.

Starts a service of its own. GATEWAY_ variables reach it; run it in another checkout to compare.
"""

import http.client
import threading
import time
from collections import Counter
from dataclasses import replace
from typing import Annotated

import typer

from bench.attack.measure import Bystander
from bench.attack.service import running_service
from bench.attack.target import ServiceOptions
from bench.photos import coffee, enlarged
from bench.remote import Remote
from bench.scale import table
from bench.tally import percentile

HEADER = ["clients with 50 MP", "small p50", "small p99", "times", "small answered", "large answered", "large refused"]


class Crowd:
    """Clients in a process of their own, each of which sends one large image after the other."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._photo = enlarged(coffee(), 8_660, 5_770).data

    def run(self, clients: int, seconds: float) -> Counter[int]:
        """How often each status was answered."""
        statuses: Counter[int] = Counter()
        ends = time.monotonic() + seconds
        threads = [threading.Thread(target=self._send, args=(ends, statuses)) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return statuses

    def _send(self, ends: float, statuses: Counter[int]) -> None:
        while time.monotonic() < ends:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
            connection.request("POST", "/predict", self._photo, {"Content-Type": "image/jpeg"})
            answer = connection.getresponse()
            answer.read()
            connection.close()
            statuses[answer.status] += 1
            if answer.status == http.HTTPStatus.SERVICE_UNAVAILABLE:
                time.sleep(1)  # Retry-After


def main(
    seconds: Annotated[float, typer.Option(help="Length of each measurement.", min=1)] = 15.0,
    clients: Annotated[list[int] | None, typer.Option(help="Number of clients with large images; repeatable.")] = None,
) -> None:
    """Print the latency of small images beside large ones."""
    rows: list[list[str]] = []
    with running_service(ServiceOptions()) as running, Remote(Crowd, running.port) as crowd:
        photo = replace(coffee(), label="")
        alone = 0.0
        crowd.call("run", 4, 2.0)  # all decoders start
        for count in [0, *(clients or [8, 40])]:
            crowd.start("run", count, seconds)
            with Bystander(running, photo) as small:
                small.wait(seconds)
            large = crowd.result()
            p50, p99 = (percentile(small.latencies_seconds, percent) for percent in (50, 99))
            alone = alone or p99
            answered = len(small.latencies_seconds) - sum(small.faults.values())
            ok = large.pop(int(http.HTTPStatus.OK), 0)
            times = [f"{1e3 * p50:.0f} ms", f"{1e3 * p99:.0f} ms", f"{p99 / alone:.1f}"]
            rows.append([str(count), *times, str(answered), str(ok), str(large.total())])
    print(table(HEADER, rows))


if __name__ == "__main__":
    typer.run(main)
