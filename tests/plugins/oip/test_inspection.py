"""What Triton's tools read, by tritonclient over HTTP and gRPC: with a real Triton."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig
from tritonclient.utils import InferenceServerException

from gateway_local.server import EmbeddedTriton
from gateway_plugins.keys.key_file import add_key
from gateway_plugins.keys.quota import read_quota
from gateway_plugins.oip.triton_calls import as_document
from tests.photos import photo, unlike_any
from tests.processes import Gateway, free_port, running_gateway

MODEL = "ensemble_model"
MAX_FILES = 7


@pytest.fixture(scope="module")
def file_of_keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A file of keys, a key for any model, and one for another model only."""
    path = tmp_path_factory.mktemp("keys") / "keys"
    return path, add_key(path, "any"), add_key(path, "other", read_quota({"models": "flowers"}))


@pytest.fixture
def headers(file_of_keys: tuple[Path, str, str]) -> dict[str, str]:
    """The key for any model; of each test its own, since Triton's client adds to them."""
    return {"x-api-key": file_of_keys[1]}


@pytest.fixture
def others(file_of_keys: tuple[Path, str, str]) -> dict[str, str]:
    """The key for another model."""
    return {"x-api-key": file_of_keys[2]}


@pytest.fixture(scope="module")
def gateway(
    light_triton: EmbeddedTriton, tmp_path_factory: pytest.TempPathFactory, file_of_keys: tuple[Path, str, str]
) -> Iterator[tuple[Gateway, str]]:
    """A gateway and the address of its gRPC port."""
    port = free_port()
    options = {"grpc_port": port, "v2_models": "classifier", "max_files": MAX_FILES, "api_keys_file": file_of_keys[0]}
    log = tmp_path_factory.mktemp("inspection") / "log"
    with running_gateway(log, triton_url=light_triton.url, **options) as running:
        yield running, f"127.0.0.1:{port}"


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


def test_configuration_of_a_model_that_passes_through_is_tritons(clients, headers, light_triton):
    over_http, over_grpc = clients
    with tritonclient.grpc.InferenceServerClient(light_triton.url) as triton:
        expected = triton.get_model_config("classifier").config
    assert over_grpc.get_model_config("classifier", headers=headers).config == expected
    config = over_http.get_model_config("classifier", headers=headers)
    assert config["input"][0]["dims"] == list(expected.input[0].dims)
    assert config["output"][0]["data_type"] == "TYPE_FP32"


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
        assert counts[1] == counts[0] + 1


def test_statistics_of_all_models(clients, headers, others):
    over_http, over_grpc = clients
    found = over_http.get_inference_statistics(headers=headers)["model_stats"]
    assert {each["name"] for each in found} == {MODEL}
    assert {each.name for each in over_grpc.get_inference_statistics(headers=headers).model_stats} == {MODEL}
    assert over_http.get_inference_statistics(headers=others) == {"model_stats": []}


def test_index_lists_what_the_key_may_use(clients, headers, others):
    over_http, over_grpc = clients
    expected = [{"name": MODEL, "version": "1", "state": "READY", "reason": ""}]
    assert over_http.get_model_repository_index(headers=headers) == expected
    assert over_http.get_model_repository_index(headers=others) == []
    (model,) = over_grpc.get_model_repository_index(headers=headers).models
    assert (model.name, model.version, model.state) == (MODEL, "1", "READY")
    assert not over_grpc.get_model_repository_index(headers=others).models


def test_missing_model_is_not_found_over_grpc(clients, headers):
    for read in (clients[1].get_model_config, clients[1].get_inference_statistics):
        with pytest.raises(InferenceServerException) as error:
            read("nothing", headers=headers)
        assert error.value.status() == "StatusCode.NOT_FOUND"


def test_fields_have_tritons_names_and_numbers():
    config = ModelConfig(name="m", max_batch_size=2)
    config.input.add(name="IDS", data_type=DataType.TYPE_INT64, dims=[-1, 2**40])
    config.parameters["speed"].string_value = "fast"
    document = as_document(config)
    assert document["input"][0]["dims"] == [-1, 2**40]
    assert document["input"][0]["data_type"] == "TYPE_INT64"
    assert document["parameters"] == {"speed": {"string_value": "fast"}}
    assert "dynamic_batching" not in document
