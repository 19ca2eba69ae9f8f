"""Values as platform teams set them, one file each in values/: the chart takes each of them, and what becomes of it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from deploy.generate.helm import render
from tests.deploy.conftest import SETS
from tests.deploy.kubernetes_schemas import FOREIGN, VERSIONS, at, container, faults, find, pod, template

MONITORING = {"kubernetes.io/metadata.name": "monitoring"}


@pytest.mark.parametrize("name", SETS)
def test_set_is_accepted_and_helm_lint_finds_nothing(releases, name):
    release = releases[name]
    assert not release.error
    assert not release.findings
    assert {"Deployment", "Service", "ConfigMap"} <= {each["kind"] for each in release.documents}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_matches_the_schemas(releases, version):
    documents = {
        json.dumps(each): each
        for release in releases.values()
        for each in release.documents
        if each["kind"] not in FOREIGN
    }
    assert len(documents) > 50
    assert [fault for each in documents.values() for fault in faults(each, version)] == []


def misspelt(values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each name that the chart defines is spelt wrong in turn."""
    yield from ({**values, f"{key}x": values[key]} for key in values)
    for key in {"gateway", "triton"} & values.keys():
        yield from ({**values, key: {**values[key], f"{inner}x": None}} for inner in values[key])


def test_misspelt_names_of_a_set_are_refused():
    wrong = [(name, each) for name, values in SETS.items() for each in misspelt(values)]
    assert len(wrong) > 20
    refused = render([values for _, values in wrong])
    accepted = [
        name
        for (name, _), each in zip(wrong, refused, strict=True)
        if "additional properties" not in each.error.lower()
    ]
    assert accepted == []


def test_openshift_chooses_the_ids(releases):
    release = releases["openshift-restricted-v2"]
    for each in release.documents:
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(_names(each)), each["metadata"]["name"]
    assert pod(release, "triton")["securityContext"]["runAsNonRoot"] is True


def _names(value: object) -> list[str]:
    """Every name of a map, at any depth."""
    if isinstance(value, dict):
        return [*value, *(name for each in value.values() for name in _names(each))]
    return [name for each in value for name in _names(each)] if isinstance(value, list) else []


def test_pods_have_the_identity_that_is_annotated(releases):
    release = releases["eks-irsa"]
    (account,) = [each for each in release.documents if each["kind"] == "ServiceAccount"]
    assert account["metadata"]["annotations"]
    assert pod(release, "triton")["serviceAccountName"] == account["metadata"]["name"]
    assert "serviceAccountName" not in pod(release, "gateway")
    assert pod(release, "triton")["automountServiceAccountToken"] is False, "the cloud mounts a token of its own"


def test_labels_reach_pods_and_replace_none_of_a_selector(releases):
    release = releases["private-registry-by-digest"]
    for each in release.documents:
        assert each["metadata"]["labels"]["example.com/team"] == "vision", each["kind"]
    for part, tier in (("gateway", "edge"), ("triton", "gpu")):
        labels = template(release, part)["metadata"]["labels"]
        assert labels["example.com/tier"] == tier
        assert labels["example.com/cost-centre"] == "4711"
        selector = find(release, "Deployment", f"-{part}")["spec"]["selector"]["matchLabels"]
        assert {key.partition("/")[0] for key in selector} == {"app.kubernetes.io"}
        assert selector.items() <= labels.items()
    name = "app.kubernetes.io/component"
    (release,) = render([{"commonLabels": {name: "a"}, "gateway": {"podLabels": {name: "b"}}}])
    assert template(release, "gateway")["metadata"]["labels"][name] == "gateway"


def test_mutual_tls_is_set_on_both_sides(releases):
    release = releases["cert-manager-mutual-tls"]
    variables = find(release, "ConfigMap", "-gateway")["data"]
    gateway = {each["mountPath"]: each["name"] for each in container(release, "gateway")["volumeMounts"]}
    for name in ("CA", "CERTIFICATE", "KEY"):
        assert variables[f"GATEWAY_TRITON_{name}_FILE"].rpartition("/")[0] in gateway
    assert variables["GATEWAY_TRITON_SERVER_NAME"] == "images-triton"
    volumes = {each["name"]: each for each in pod(release, "gateway")["volumes"]}
    ca = volumes[gateway["/etc/gateway/triton-ca"]]["secret"]
    assert ca["items"] == [{"key": "ca.crt", "path": "ca.crt"}], "Triton's private key is not the gateway's"
    options = container(release, "triton")["args"]
    assert {"--grpc-use-ssl=true", "--grpc-use-ssl-mutual=true"} <= set(options)
    files = [option.partition("=")[2] for option in options if option.startswith(("--grpc-server-", "--grpc-root"))]
    assert {path.rpartition("/")[0] for path in files} == {"/etc/triton/tls"}
    assert "/etc/triton/tls" in {each["mountPath"] for each in container(release, "triton")["volumeMounts"]}


def test_arguments_of_the_image_for_cpus_follow_two_dashes():
    (release,) = render([{"profile": "cpu", "triton": {"tls": {"secretName": "t"}, "extraArgs": ["--log-verbose=1"]}}])
    own, _, passed_on = " ".join(container(release, "triton")["args"]).partition(" -- ")
    assert own == "--host=0.0.0.0"
    assert passed_on.split()[0] == "--grpc-use-ssl=true"
    assert passed_on.split()[-1] == "--log-verbose=1"


def test_nothing_is_loaded_through_a_balancer(releases):
    variables = find(releases["envoy-in-front-of-tritons"], "ConfigMap", "-gateway")["data"]
    assert variables["GATEWAY_HEAL"] == "false"
    assert "GATEWAY_LOAD_MODELS" not in variables
    assert variables["GATEWAY_TRITON_URL"] != "images-triton:8001"


POD, GATEWAY = "spec template spec", "spec template spec containers gateway"
TRITON, NGINX = "spec template spec containers triton", "metadata annotations nginx.ingress.kubernetes.io"
CLAIMS, MIRROR = ("images-triton-models", "images-triton-tensorrt"), "registry.example.com/mirror/triton-image-gateway"
PULL = ["gateway", "model", "pull", "s3://example-models/production", "/models/repository"]
FOLLOW = ["--follow", "30", "--triton", "http://127.0.0.1:8000"]
MODELS = {"name": "models", "mountPath": "/models", "subPath": "repository", "readOnly": True}


def labelled(component: str) -> dict[str, dict[str, str]]:
    """What selects the pods of a part of this release."""
    labels = {"name": "triton-image-gateway", "instance": "images", "component": component}
    return {"matchLabels": {f"app.kubernetes.io/{name}": value for name, value in labels.items()}}


GATEWAYS = {"podSelector": labelled("gateway")}
VALUES = [
    ("autoscaled", "Deployment gateway", "spec replicas", None),
    ("autoscaled", "Deployment triton", "spec replicas", None),
    # What the share of the processor is of.
    ("autoscaled", "Deployment gateway", f"{GATEWAY} resources requests cpu", "1"),
    ("as it comes", "ConfigMap gateway", "data GATEWAY_HOLD_WITHOUT_TRITON", None),
    ("as it comes", "Deployment gateway", f"{GATEWAY} readinessProbe httpGet path", "/health/ready"),
    ("as it comes", "NetworkPolicy triton", "spec egress", []),
    ("as it comes", "NetworkPolicy triton", "spec ingress 0", {"from": [GATEWAYS], "ports": [{"port": 8001}]}),
    ("as it comes", "NetworkPolicy triton", "spec ingress 1 ports", [{"port": 8002}]),
    ("as it comes", "NetworkPolicy triton", "spec ingress 1 from 0 namespaceSelector matchLabels", MONITORING),
    ("as it comes", "NetworkPolicy triton", "spec ingress 1 from 1", None),
    ("as it comes", "Deployment triton", f"{TRITON} volumeMounts tensorrt", None),
    ("claims-of-the-chart", "Deployment triton", f"{POD} volumes models persistentVolumeClaim claimName", CLAIMS[0]),
    ("claims-of-the-chart", "Deployment triton", f"{POD} volumes tensorrt persistentVolumeClaim claimName", CLAIMS[1]),
    ("claims-of-the-chart", "PersistentVolumeClaim models", "metadata annotations helm.sh/resource-policy", "keep"),
    ("eks-irsa", "Deployment triton", f"{POD} initContainers 0 command", PULL),
    ("eks-irsa", "Deployment triton", f"{POD} containers models-follow command", [*PULL, *FOLLOW]),
    ("eks-irsa", "Deployment triton", f"{TRITON} volumeMounts models", MODELS),
    ("eks-irsa", "NetworkPolicy triton", "spec egress 0 ports 2", {"port": 443}),
    ("envoy-in-front-of-tritons", "Deployment triton", f"{TRITON} livenessProbe exec command 2", "flowers"),
    ("envoy-in-front-of-tritons", "NetworkPolicy triton", "spec ingress 0 from 1 podSelector matchLabels app", "envoy"),
    ("gateway-api", "NetworkPolicy gateway", "spec ingress 0 ports", [{"port": 8080}, {"port": 8081}]),
    ("gateway-api", "NetworkPolicy gateway", "spec ingress 0 from 2", {"podSelector": labelled("test")}),
    ("gateway-api", "NetworkPolicy gateway", "spec ingress 0 from 3", None),
    ("private-registry-by-digest", "Deployment gateway", f"{GATEWAY} env 0 name", "GATEWAY_CACHE_SECRET"),
    ("private-registry-by-digest", "Deployment gateway", f"{GATEWAY} env 1", None),
    ("private-registry-by-digest", "Deployment gateway", f"{GATEWAY} image", f"{MIRROR}/gateway@sha256:{1:064}"),
    ("private-registry-by-digest", "Deployment triton", f"{TRITON} image", f"{MIRROR}/triton@sha256:{2:064}"),
    ("scale-to-zero", "ConfigMap gateway", "data GATEWAY_HOLD_WITHOUT_TRITON", "true"),
    ("scale-to-zero", "Deployment gateway", f"{GATEWAY} readinessProbe httpGet path", "/health/live"),
    ("scale-to-zero", "ScaledObject triton", "spec triggers 0 metadata threshold", "48"),
]


@pytest.mark.parametrize(
    ("name", "thing", "path", "value"), VALUES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_set_has_its_values(releases, name, thing, path, value):
    kind, part = thing.split()
    assert at(find(releases[name], kind, f"-{part}"), path) == value
