"""A real Prometheus, if the machine has one: Debian's package `prometheus` contains it and promtool."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from deploy.generate import CHART
from gateway_local.children import is_ok
from gateway_local.hosts import LOOPBACK
from tests.processes import free_port, wait_for

ALERTS = CHART / "files" / "alerts.yml"
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="needs prometheus and promtool, which no Python package brings (Debian: apt-get install prometheus)",
)


def promtool(*arguments: str, given: str | None = None) -> str:
    """The output of promtool; fails if it finds a fault."""
    done = subprocess.run(["promtool", *arguments], input=given, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def expression(query: str) -> str:
    """A panel's expression as Grafana sends it, with `All` for every variable."""
    for variable, value in (("$namespace", ".*"), ("$model", ".*"), ("$__rate_interval", "30s"), ("$__range", "10m")):
        query = query.replace(variable, value)
    return query


@dataclass(frozen=True)
class Prometheus:
    url: str

    def ask(self, text: str) -> list[dict[str, Any]]:
        """The series of an expression, now; fails where it cannot be evaluated."""
        answer = httpx.post(f"{self.url}/api/v1/query", data={"query": text}, timeout=30).json()
        assert answer["status"] == "success", (text, answer)
        return answer["data"]["result"]

    def has(self, text: str) -> bool:
        """Whether the expression has a number, which 0/0 is not."""
        return any(series["value"][1] != "NaN" for series in self.ask(text))

    def rules(self) -> list[dict[str, Any]]:
        """Every alert as Prometheus last evaluated it."""
        groups = httpx.get(f"{self.url}/api/v1/rules", timeout=30).json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]


@contextmanager
def running_prometheus(folder: Path, targets: dict[str, str]) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes each job's `host:port` every second and evaluates the alerts."""
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [target]}]} for job, target in targets.items()
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    port = free_port()
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={LOOPBACK}:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        wait_for(lambda: is_ok(LOOPBACK, port, "/-/ready", timeout_seconds=5), process=process)
        yield Prometheus(f"http://{LOOPBACK}:{port}")
    finally:
        process.kill()
        process.wait()
