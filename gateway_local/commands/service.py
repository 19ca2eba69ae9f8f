"""`gateway status|stop|reload`, and `gateway up --detach`: services of this machine, by their records."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.command_line.terminal import ApiKey, emit, print_status
from gateway.errors import UserError
from gateway.machine.service_record import lives, running, state_folder
from gateway.settings import Settings
from gateway_local.hosts import authority

START_SECONDS, STOP_SECONDS, RELOAD_SECONDS = 900.0, 600.0, 180.0
"""Longest waits: for a start, which may fetch Triton; for a stop, whose grace period is a setting; for a reload."""
ASK_SECONDS, POLL_SECONDS = 5.0, 0.1
NOT_RUNNING = 3
"""The exit code of `gateway status` without a service, as systemctl's."""
SHOWN_LINES = 20

OfPort = Annotated[int | None, typer.Option("--port", help="Port of the service, if several run.")]
Record = dict[str, Any]


class NoService(UserError):
    """No service of this user runs, or several do and none was named; the message says what to do."""


def status(port: OfPort = None, api_key: ApiKey = None) -> None:
    """Show the services that run here: health, models, addresses and log.

    Exits with 0 if all of them classify images, with 1 if one does not, and with 3 if none runs.

        gateway status
    """
    found = [record for record in running() if port in {None, record["port"]}]
    if not found:
        print_status(f"no service runs{f' on port {port}' if port else ''}; `gateway up --detach` starts one")
        raise typer.Exit(NOT_RUNNING)
    ready = [_show(record, api_key) for record in found]
    raise typer.Exit(not all(ready))


def stop(port: OfPort = None) -> None:
    """Stop the service of `gateway up` or `gateway serve`, and wait until it has ended.

    Requests that were accepted are answered first.

        gateway stop --port 8080
    """
    record = the_service(port)
    began = time.monotonic()
    _send(record, signal.SIGTERM)
    _wait(lambda: not lives(record), STOP_SECONDS, f"process {record['pid']} has not ended")
    print_status(f"stopped {url_of(record)} after {time.monotonic() - began:.1f} s")


def reload(port: OfPort = None) -> None:
    """Read the settings again: new workers replace the present ones, and no request is lost.

    Settings come from the file .env in the folder where the service was started; variables of its environment and
    options of its command take precedence, and stay. Settings of Triton need a restart. Exits with 1, and the service
    goes on as before, if a setting is wrong.

        gateway reload
    """
    record = the_service(port)
    if not record.get("ready", True):
        raise NoService(f"{url_of(record)} is still starting")
    _send(record, signal.SIGHUP)

    def outcome() -> Record | None:
        now = _record_of(record["port"])
        if now is None or now["pid"] != record["pid"]:
            raise UserError(f"{url_of(record)} has ended")
        return now if now["reloads"] > record["reloads"] else None

    done = _wait(outcome, RELOAD_SECONDS, "the new workers are not ready")
    if done["fault"]:
        raise UserError(f"not reloaded, and the service goes on as before: {done['fault']}")
    print_status(f"reloaded {url_of(record)}")


def detached(port: int, words: Sequence[str]) -> Record:
    """Start `gateway WORDS` in the background; returns its record once it is ready. Raises UserError with its log."""
    log = state_folder() / f"gateway-{port}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists():
        log.replace(log.with_suffix(".log.1"))
    print_status(f"starting in the background; its log, and Triton's, go to {log}")
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def ready() -> Record | None:
        if process.poll() is not None:
            last = log.read_text(errors="replace").splitlines()[-SHOWN_LINES:]
            raise UserError(f"the service ended with code {process.returncode} while it started:", *last)
        record = _record_of(port)
        return record if record and record["pid"] == process.pid and record.get("ready") else None

    try:
        started: Record = _wait(ready, START_SECONDS, f"the service is not ready; {log} may say why")
    except BaseException:
        process.terminate()
        raise
    return started


def running_on(port: int, repository: Path) -> Record | None:
    """The record of a `gateway up` on a port that serves a repository, if one is ready."""
    found = _record_of(port)
    return found if found and found.get("ready") and found["model_repository"] == str(repository.resolve()) else None


def next_steps(settings: Settings, record: Record, query: str = "") -> tuple[str, ...]:
    """The next steps for a service in the background, in five lines."""
    from gateway_local.up import program, request

    url = url_of(record)
    curl = request(settings, url)
    if query:  # a shell would take it for a pattern
        curl = curl.replace(f"{url}/predict", f"'{url}/predict{query}'")
    return (
        f"serving on {url}",
        f"  {curl}",
        f"page: {url}/; every request with a form: {url}/docs",
        f"{program()} status shows it; {program()} reload takes changed settings; log: {record['log']}",
        f"{program()} stop --port {record['port']} stops it",
    )


def the_service(port: int | None) -> Record:
    """The record of the service on a port, or of the only one; raises NoService."""
    found = [record for record in running() if port in {None, record["port"]}]
    if len(found) == 1:
        return found[0]
    if not found:
        raise NoService(f"no service of this user runs{f' on port {port}' if port else ''}: gateway status")
    raise NoService(f"several services run: add --port {' or --port '.join(str(each['port']) for each in found)}")


def _send(record: Record, number: int) -> None:
    """Signal a service, unless another process has got its id since."""
    handle = os.pidfd_open(record["pid"])
    try:
        if not lives(record):
            raise NoService(f"{url_of(record)} has ended")
        signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)


def url_of(record: Record) -> str:
    """The address of a service for clients on this machine."""
    return f"http://{authority(record['host'], record['port'])}"


def _record_of(port: int) -> Record | None:
    return next((record for record in running() if record["port"] == port), None)


def _wait(condition: Callable[[], Any], seconds: float, late: str) -> Any:  # noqa: ANN401  # what it returns
    """Wait until a condition holds, and return its value; raises UserError after the time."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise UserError(f"{late} after {seconds:g} s")
        time.sleep(POLL_SECONDS)
    return value


def _show(record: Record, api_key: str | None) -> bool:
    """Print a service; returns whether it classifies images."""
    import httpx

    url = url_of(record)
    headers = {"X-API-Key": api_key} if api_key else {}
    health, models = "does not answer", ""
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=ASK_SECONDS, trust_env=False) as client:
            health = client.get("/health/ready").json()["status"]
            answer = client.get("/models")
            models = (
                ", ".join(f"{each['name']} version {each['version']}" for each in answer.json()["models"])
                if answer.is_success
                else f"not shown ({answer.status_code}): --api-key KEY or GATEWAY_API_KEY"
            )
    except (httpx.HTTPError, ValueError, KeyError):
        health = health if record.get("ready", True) else "starting"
    when = f"since {datetime.fromisoformat(record['since']).astimezone():%Y-%m-%d %H:%M}"
    lines = {
        "models": models,
        "from": record.get("model_repository"),
        "Triton": record.get("triton"),
        "log": record.get("log"),
        "reload": record["fault"] and f"the last one failed: {record['fault']}",
    }
    emit(f"{url}  {health}  gateway {record['command']}, process {record['pid']}, {when}")
    emit(*(f"  {name:7} {text}" for name, text in lines.items() if text))
    return bool(health == "ready")
