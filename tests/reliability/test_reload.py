"""Reload and stop of `gateway serve` under clients that do not retry: no request is lost."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.load import Load
from tests.photos import photo
from tests.processes import Gateway, children, running_gateway, wait_for

pytestmark = [pytest.mark.triton, pytest.mark.slow]


@contextmanager
def loaded(gateway: Gateway) -> Iterator[Load]:
    """Clients of which half keep their connections, and half open one for each request; the load of all of them."""
    with (
        Load(gateway.url, clients=2, pause_seconds=0.1) as load,
        Load(gateway.url, clients=2, pause_seconds=0.1, keeps_connections=False, answers=load.answers),
    ):
        yield load


def workers(gateway: Gateway) -> set[int]:
    return {each.pid for each in children(gateway.process.pid, "gateway.worker")}


def top_k(gateway: Gateway) -> int:
    with gateway.client() as http:
        return len(http.post("/predict", files={"f": photo("cat")}).json()["results"][0]["predictions"])


def reloaded(gateway: Gateway, event: str) -> None:
    gateway.process.send_signal(signal.SIGHUP)
    wait_for(lambda: event in [each["event"] for each in gateway.events()], process=gateway.process)


def test_reload_takes_new_settings_and_loses_no_request(light_triton, tmp_path):
    variables = tmp_path / ".env"
    variables.write_text("GATEWAY_DEFAULT_TOP_K=2\n")
    with running_gateway(tmp_path / "log", supervised=True, directory=tmp_path, triton_url=light_triton.url) as gateway:
        first = workers(gateway)
        with loaded(gateway) as load:
            wait_for(lambda: load.outcomes()[200] > 20)
            variables.write_text("GATEWAY_API_KEYS_FILE=/nowhere\n")
            reloaded(gateway, "reload_failed")
            assert workers(gateway) == first
            variables.write_text("GATEWAY_DEFAULT_TOP_K=1\n")
            reloaded(gateway, "reloaded")
            wait_for(lambda: top_k(gateway) == 1)
            wait_for(lambda: len(workers(gateway)) == 1)
        assert not workers(gateway) & first
        assert set(load.outcomes()) == {200}


def test_stop_answers_what_was_accepted(light_triton, tmp_path):
    with running_gateway(tmp_path / "log", supervised=True, workers=2, triton_url=light_triton.url) as gateway:
        with loaded(gateway) as load:
            wait_for(lambda: load.outcomes()[200] > 40)
            gateway.process.terminate()
            gateway.process.wait(60)
        assert set(load.outcomes()) <= {200, "ConnectionRefusedError"}
