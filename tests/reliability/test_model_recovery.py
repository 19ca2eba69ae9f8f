"""Every model recovers, not only the default one; a crashing image is sent twice at most; on real Triton servers."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gateway_local.runtime.base import TritonRuntime
from gateway_local.server import EmbeddedTriton
from tests.gateway_models.networks.builders import add_head
from tests.load import Load
from tests.photos import photo, pixels, unlike_any
from tests.processes import Gateway, wait_for
from tests.reliability.conftest import all_ready, classify, health, outcomes, ready, urls_of
from tests.samples import encode
from tests.tritons import running_triton, stub_processes

pytestmark = [pytest.mark.triton, pytest.mark.slow]

KILLER = b"this picture ends the process that decodes it"
BEGIN = "        if length == 0:\n            return Status.EMPTY"
"""Where the preprocessor begins to decode an image."""


@pytest.fixture(scope="module")
def triton_of_two(runtime: TritonRuntime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedTriton]:
    """A Triton with `signs`, and with `flowers` in two versions."""
    repository = tmp_path_factory.mktemp("two") / "models"
    add_head(repository, "signs")
    add_head(repository, "flowers")
    add_head(repository, "flowers", seed=1, version=2, preprocessing=None)
    with running_triton(runtime, repository) as server:
        yield server


def test_model_recovers_while_the_default_model_stays_ready(triton_of_two, start_gateway):
    triton = triton_of_two
    with start_gateway(triton_url=triton.url, model="signs", ready_interval_seconds=1) as gateway:
        asked = [{"model": "flowers"}, {"model": "flowers", "version": "1"}, {"model": "flowers", "version": "2"}]
        wait_for(lambda: all(classify(gateway, photo("cat"), **params).status_code == 200 for params in asked))
        with Load(gateway.url, clients=2) as others, Load(gateway.url, clients=2, model="flowers") as load:
            wait_for(lambda: min(others.outcomes()[200], load.outcomes()[200]) > 5)
            for process in stub_processes(triton, "flowers_classifier"):
                process.kill()
            wait_for(lambda: not models(gateway)["flowers"])
            assert ready(gateway)
            assert "gateway_model_ready" in httpx.get(f"{gateway.url}/metrics", timeout=60).text
            wait_for(
                lambda: all(classify(gateway, photo("cat"), **params).status_code == 200 for params in asked),
                timeout_seconds=120,
            )
            wait_for(lambda: all(models(gateway).values()))
        assert set(others.outcomes()) == {200}
        assert set(load.outcomes()) == {200, 503}


def models(gateway: Gateway) -> dict[str, bool]:
    report = health(gateway)
    assert report.status_code == 200
    return report.json()["models"]


def test_crashing_image_ends_two_processes_at_most(start_triton, start_gateway, tmp_path):
    repository = tmp_path / "models"
    add_head(repository, "signs")
    make_vulnerable(repository / "signs_preprocessor" / "1" / "model.py")
    tritons = [start_triton(repository), start_triton(repository)]
    killer = encode(pixels("cat"), "JPEG", comment=KILLER)
    with start_gateway(triton_url=urls_of(tritons), model="signs", ready_interval_seconds=1) as gateway:
        wait_for(lambda: all_ready(gateway))
        neighbours = unlike_any(photo("cat")), unlike_any(photo("coffee"))
        first, second, third = outcomes(classify(gateway, neighbours[0], killer, neighbours[1]))
        assert second == "image_crashed_model"
        # For a moment neither of the two servers may be available for the others; of three, one always is.
        assert {first, third} <= {"ok", "model_unavailable"}
        wait_for(lambda: all_ready(gateway), timeout_seconds=120)
        assert outcomes(classify(gateway, *neighbours)) == ["ok", "ok"]
        assert healings(gateway) <= 2


def make_vulnerable(model: Path) -> None:
    """Put a fault into a copy of the preprocessor's model.py: KILLER in an image ends the process that decodes it."""
    text = model.read_text()
    assert BEGIN in text
    fault = f"        if {KILLER!r} in encoded.tobytes():\n            os.kill(os.getpid(), 9)\n"
    model.write_text(text.replace(BEGIN, fault + BEGIN))


def healings(gateway: Gateway) -> float:
    text = httpx.get(f"{gateway.url}/metrics", timeout=60).text
    lines = [line for line in text.splitlines() if line.startswith("gateway_healings_total")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)
