"""The runtime for KServe: KServe's requirements, Kubernetes' schemas, and agreement with the chart."""

from typing import Any

import pytest
import yaml

from deploy.generate import CHART, DEPLOY
from gateway.settings import variable
from tests.deploy.kubernetes_schemas import VERSIONS, faults
from tests.settings import Settings

SERVER, FRONT = "kserve-container", "transformer-container"
"""Names that KServe gives a meaning: the models are mounted into the first, and its Service leads to the second."""


def load(name: str) -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "kserve" / name).read_text())


RUNTIME = load("runtime.yaml")
CONTAINERS = {each["name"]: each for each in RUNTIME["spec"]["containers"]}


@pytest.mark.parametrize("version", VERSIONS)
def test_objects_match_the_schemas(version):
    assert faults(RUNTIME, version) == []
    assert faults(load("inferenceservice.yaml"), version) == []
    pod = {"containers": RUNTIME["spec"]["containers"], "volumes": RUNTIME["spec"]["volumes"]}
    assert faults({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "images"}, "spec": pod}, version) == []
    misspelt = {**RUNTIME, "spec": {**RUNTIME["spec"], "supportedModelFormat": []}}
    assert "supportedModelFormat" in faults(misspelt, version)[0]


def test_service_leads_to_the_gateway_which_calls_the_triton_of_its_pod():
    model = load("inferenceservice.yaml")["spec"]["predictor"]["model"]
    assert model["runtime"] == RUNTIME["metadata"]["name"]
    assert model["modelFormat"]["name"] in {each["name"] for each in RUNTIME["spec"]["supportedModelFormats"]}
    (port,) = CONTAINERS[FRONT]["ports"]
    assert port["containerPort"] == Settings.model_fields["port"].default
    assert "ports" not in CONTAINERS[SERVER]
    given = {each["name"]: each["value"] for each in CONTAINERS[FRONT]["env"]}
    fields = {variable(field): field for field in Settings.variables()}
    Settings(_env_file=None, **{fields[name]: value for name, value in given.items()})
    assert given["GATEWAY_TRITON_URL"] == "127.0.0.1:8001"
    assert "--grpc-address=127.0.0.1" in CONTAINERS[SERVER]["args"]


def test_triton_serves_the_models_that_kserve_mounts():
    own = yaml.safe_load((CHART / "values.yaml").read_text())["profiles"]["gpu"]["tritonArgs"]
    args = CONTAINERS[SERVER]["args"]
    assert args[: len(own)] == [each.replace("=/models", "=/mnt/models") for each in own]
