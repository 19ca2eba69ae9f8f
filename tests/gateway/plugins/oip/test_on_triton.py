"""With a real Triton: the requests of Triton's tools, by tritonclient over HTTP and gRPC."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.grpc.model_config_pb2 import DataType

from gateway.plugins.oip.routes.models import as_document
from gateway_local.server import EmbeddedTriton
from tests.keys import key_of
from tests.photos import photo, unlike_any
from tests.processes import Gateway, free_port, running_gateway

MODEL = "ensemble_model"
MAX_FILES = 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("v2")


@pytest.fixture(scope="module")
def keys(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """A key for any model, and one for another model only, with names that gRPC allows."""
    any_model, other = key_of(folder / "keys", "any"), key_of(folder / "keys", "other", models="flowers")
    return {"x-api-key": any_model["X-API-Key"]}, {"x-api-key": other["X-API-Key"]}


@pytest.fixture
def headers(keys: tuple[dict[str, str], ...]) -> dict[str, str]:
    """The key for any model; of each test its own, since Triton's client adds to them."""
    return dict(keys[0])


@pytest.fixture(scope="module")
def gateway(
    light_triton: EmbeddedTriton, folder: Path, keys: tuple[dict[str, str], ...]
) -> Iterator[tuple[Gateway, str]]:
    """A gateway and the address of its gRPC port."""
    port = free_port()
    options = {"grpc_port": port, "max_files": MAX_FILES}
    with running_gateway(
        folder / "log", triton_url=light_triton.url, api_keys_file=folder / "keys", **options
    ) as running:
        yield running, f"127.0.0.1:{port}"
        assert not running.faults()


@pytest.fixture(scope="module")
def clients(gateway: tuple[Gateway, str]) -> Iterator[tuple[object, object]]:
    """Triton's clients over HTTP and gRPC."""
    running, grpc_address = gateway
    with (
        tritonclient.http.InferenceServerClient(running.url.removeprefix("http://")) as over_http,
        tritonclient.grpc.InferenceServerClient(grpc_address) as over_grpc,
    ):
        yield over_http, over_grpc


def test_configuration_fits_the_metadata(clients, headers):
    """The first dimension of the metadata is the batch, as perf_analyzer takes it where max_batch_size is not 0."""
    over_http, over_grpc = clients
    config = over_http.get_model_config(MODEL, headers=headers)
    assert config == {
        "name": MODEL,
        "platform": "triton-image-gateway",
        "max_batch_size": MAX_FILES,
        "input": [{"name": "IMAGE", "data_type": "TYPE_STRING", "dims": []}],
        "output": [
            {"name": "PREDICTION", "data_type": "TYPE_FP32", "dims": [1000]},
            {"name": "STATUS", "data_type": "TYPE_STRING", "dims": []},
        ],
    }
    same = over_grpc.get_model_config(MODEL, "1", headers=headers).config
    assert (same.name, same.max_batch_size, same.input[0].data_type) == (MODEL, MAX_FILES, DataType.TYPE_STRING)
    assert list(same.output[0].dims) == [1000]


def test_calls_of_a_measurement(clients, headers):
    """The order of perf_analyzer: metadata, configuration, statistics, inferences, statistics."""
    for client, kind in zip(clients, (tritonclient.http, tritonclient.grpc), strict=True):
        client.get_server_metadata(headers=headers)
        metadata = client.get_model_metadata(MODEL, headers=headers)
        client.get_model_config(MODEL, headers=headers)
        assert metadata
        counts = []
        for _ in range(2):
            image = np.array([unlike_any(photo("cat"))], np.object_)
            given = kind.InferInput("IMAGE", [1], "BYTES").set_data_from_numpy(image)
            client.infer(MODEL, [given], headers=dict(headers))
            found = client.get_inference_statistics(MODEL, headers=headers)
            document = found if isinstance(found, dict) else as_document(found)
            (statistics,) = document["model_stats"]
            assert (statistics["name"], statistics["version"]) == (MODEL, "1")
            success = statistics["inference_stats"]["success"]
            assert success["ns"] >= success["count"] > 0
            counts.append(statistics["inference_count"])
        assert counts[1] > counts[0]  # probes of the gateway count as well


def test_key_sees_the_index_of_its_models(clients, headers, keys):
    over_http, over_grpc = clients
    others = keys[1]
    expected = [{"name": MODEL, "version": "1", "state": "READY", "reason": ""}]
    assert over_http.get_model_repository_index(headers=headers) == expected
    assert over_http.get_model_repository_index(headers=dict(others)) == []
    (model,) = over_grpc.get_model_repository_index(headers=headers).models
    assert (model.name, model.version, model.state) == (MODEL, "1", "READY")
    assert not over_grpc.get_model_repository_index(headers=dict(others)).models
