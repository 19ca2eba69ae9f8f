"""The manifests fit the code and each other."""

import pytest
import yaml

from gateway.embedded.server import EXIT_TIMEOUT_SECONDS
from gateway.settings import Settings, variable
from tests.processes import PROJECT

FILES = sorted((PROJECT / "deploy" / "kubernetes").glob("*.yaml"))
DOCUMENTS = [document for file in FILES for document in yaml.safe_load_all(file.read_text())]


def get(kind: str, name: str) -> dict:
    return next(each for each in DOCUMENTS if (each["kind"], each["metadata"]["name"]) == (kind, name))


def pod(name: str) -> dict:
    return get("Deployment", name)["spec"]["template"]["spec"]


def test_every_variable_is_a_setting_with_an_allowed_value():
    given = get("ConfigMap", "gateway")["data"]
    assert set(given) <= {variable(field) for field in Settings.model_fields}
    fields = {variable(field): field for field in Settings.model_fields}
    Settings(_env_file=None, **{fields[name]: value for name, value in given.items()})


def test_a_pod_gets_longer_to_stop_than_its_settings_take():
    given = get("ConfigMap", "gateway")["data"]
    stop_seconds = float(given["GATEWAY_SHUTDOWN_DELAY_SECONDS"]) + float(given["GATEWAY_SHUTDOWN_GRACE_SECONDS"])
    assert pod("gateway")["terminationGracePeriodSeconds"] > stop_seconds
    assert pod("triton")["terminationGracePeriodSeconds"] > EXIT_TIMEOUT_SECONDS


def test_the_gateway_finds_triton_by_a_headless_service():
    host, _, port = get("ConfigMap", "gateway")["data"]["GATEWAY_TRITON_URL"].partition(":")
    service = get("Service", host)["spec"]
    assert service["clusterIP"] == "None"
    assert int(port) in [each["port"] for each in service["ports"]]


def test_probes_ask_what_they_mean():
    (gateway,) = pod("gateway")["containers"]
    (triton,) = pod("triton")["containers"]
    assert gateway["readinessProbe"]["httpGet"]["path"] == "/health/ready"
    assert gateway["livenessProbe"]["httpGet"]["path"] == "/health/live"
    assert triton["livenessProbe"]["httpGet"]["path"] == "/v2/health/live"


@pytest.mark.parametrize("name", ["gateway", "triton"])
def test_pods_run_with_few_rights(name: str):
    assert pod(name)["securityContext"]["runAsNonRoot"] is True
    (container,) = pod(name)["containers"]
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_only_the_gateway_reaches_triton():
    (rule,) = get("NetworkPolicy", "triton")["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": {"app": "gateway"}}}]


def test_selectors_find_their_pods():
    for document in DOCUMENTS:
        if document["kind"] in {"Service", "Deployment"}:
            selector = document["spec"]["selector"]
            wanted = selector.get("matchLabels", selector)
            labels = get("Deployment", document["metadata"]["name"])["spec"]["template"]["metadata"]["labels"]
            assert wanted.items() <= labels.items()
