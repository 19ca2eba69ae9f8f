"""The prediction log of a gateway as it is run, in front of a real Triton."""

import json
import shutil

import httpx
import numpy as np

from gateway_models.networks.export import EFFICIENTNET_LITE0, default_entry
from gateway_models.repository.writing import rewrite
from tests.asking import encode
from tests.commands import gateway
from tests.doubles.backend import PNG
from tests.gateway_models.predictions.logged import files, rows

SETTINGS = {"log_predictions_share": "100", "log_predictions_images": "true"}


def send(client: httpx.Client, number: int) -> None:
    answer = client.post(
        "/predict?top_k=1", content=PNG, headers={"X-Request-ID": f"r{number}", "Content-Type": "image/png"}
    )
    assert answer.status_code == 200, answer.text


def test_no_row_is_lost_when_a_gateway_with_two_workers_stops(start_gateway, light_triton, tmp_path):
    with start_gateway(triton_url=light_triton.url, workers=2, log_predictions=tmp_path, **SETTINGS) as running:
        for number in range(20):
            with running.client() as client:  # a new connection, which either worker may get
                send(client, number)
    found = rows(tmp_path)
    assert sorted(row["request_id"] for row in found) == sorted(f"r{number}" for number in range(20))
    assert {len(row["scores"]) for row in found} == {5}  # although the client asks for one
    assert all(path.suffix in {".parquet", ".png"} for path in files(tmp_path, "."))
    assert len(files(tmp_path, "images")) == 1


def test_drift_of_a_log_from_a_folder(start_gateway, light_triton, light_repository, tmp_path):
    """JPEG files were expected, and small PNG files came; the classes are the same."""
    rng = np.random.default_rng(0)
    (tmp_path / "expected").mkdir()
    for number in range(60):
        noise = rng.integers(0, 255, (30, 40 + number, 3), np.uint8)
        (tmp_path / "expected" / f"{number}.jpg").write_bytes(encode(noise, ".jpg"))
    log = tmp_path / "log"
    with (
        start_gateway(triton_url=light_triton.url, log_predictions=log, **SETTINGS) as running,
        running.client() as client,
    ):
        for number in range(60):
            send(client, number)
    models = tmp_path / "models"
    rewrite(default_entry(EFFICIENTNET_LITE0), models)
    shutil.copy(light_repository / "classifier" / "labels.txt", models / "classifier")
    options = ("--reference", tmp_path / "expected", "--triton", light_triton.url, "--model-repository", models)
    done = gateway("model", "drift", "ensemble_model", "--log", log, "--json", *options, code=3)
    found = {each["name"]: each["drift"] for each in json.loads(done.stdout)["properties"]}
    assert (found["format"], found["pixels"], found["class"], found["score"]) == (True, True, False, False)
