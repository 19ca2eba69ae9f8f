"""A request that is over leaves nothing behind, whatever ended it."""

import re

import httpx
import pytest

from tests.photos import photo
from tests.processes import Gateway, wait_for

pytestmark = pytest.mark.triton


def in_flight(http: httpx.Client) -> float:
    return float(re.search(r"^gateway_images_in_flight (\S+)$", http.get("/metrics").text, re.MULTILINE)[1])


@pytest.mark.parametrize(
    ("parameters", "status", "code"),
    [({"model": "nope"}, 404, "model_not_found"), ({"labels": "Egyptian cart"}, 422, "invalid_parameter")],
)
def test_unknown_model_is_reported_at_once_for_any_number_of_files(
    gateway: Gateway, parameters: dict[str, str], status: int, code: str
):
    files = [("f", (f"{number}.jpg", photo("cat"))) for number in range(200)]
    with gateway.client() as http:
        for _ in range(3):
            answer = http.post("/predict", params=parameters, files=files, timeout=30)
            assert (answer.status_code, answer.json()["code"]) == (status, code)
        wait_for(lambda: in_flight(http) == 0)
        assert http.post("/predict", files={"f": ("c.jpg", photo("cat"))}).status_code == 200
