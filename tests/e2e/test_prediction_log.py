"""The prediction log of a gateway as it is run, in front of a real Triton."""

import httpx

from tests.doubles.backend import PNG
from tests.gateway_models.predictions.logged import files, rows

SETTINGS = {"log_predictions_share": "100", "log_predictions_images": "true"}


def send(client: httpx.Client, number: int) -> None:
    top_k = (1, 5, 9)[number % 3]
    answer = client.post(
        f"/predict?top_k={top_k}", content=PNG, headers={"X-Request-ID": f"r{number}", "Content-Type": "image/png"}
    )
    assert answer.status_code == 200, answer.text


def test_no_row_is_lost_when_a_gateway_with_two_workers_stops(start_gateway, light_triton, tmp_path):
    with start_gateway(triton_url=light_triton.url, workers=2, log_predictions=tmp_path, **SETTINGS) as running:
        for number in range(20):
            with running.client() as client:  # a new connection, which either worker may get
                send(client, number)
    found = rows(tmp_path)
    assert sorted(row["request_id"] for row in found) == sorted(f"r{number}" for number in range(20))
    assert {len(row["scores"]) for row in found} == {5}  # whatever the client asks for
    assert all(path.suffix in {".parquet", ".png"} for path in files(tmp_path, "."))
    assert len(files(tmp_path, "images")) == 1
