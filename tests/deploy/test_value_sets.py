"""Values as platform teams set them, one file each in values/: the chart accepts each of them and renders it right."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from deploy.generate.helm import render
from tests.deploy.conftest import SETS
from tests.deploy.kubernetes_schemas import FOREIGN, VERSIONS, at, container, faults, find


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
    """The values with one misspelt name, for each name that the chart defines."""
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
    text = json.dumps(releases["openshift-restricted-v2"].documents)
    assert not re.findall(r'"(?:runAsUser|runAsGroup|fsGroup)"', text)


def test_arguments_of_the_image_for_cpus_follow_two_dashes():
    (release,) = render([{"profile": "cpu", "triton": {"tls": {"secretName": "t"}, "extraArgs": ["--log-verbose=1"]}}])
    own, _, passed_on = " ".join(container(release, "triton")["args"]).partition(" -- ")
    assert own == "--host=0.0.0.0"
    assert passed_on.split()[0] == "--grpc-use-ssl=true"
    assert passed_on.split()[-1] == "--log-verbose=1"


POD = "spec template spec"
TRITON = f"{POD} containers triton"
VALUES = [
    ("autoscaled", "Deployment gateway", "spec replicas", None),
    ("autoscaled", "Deployment triton", "spec replicas", None),
    (
        "as it comes",
        "Deployment triton",
        f"{TRITON} env GATEWAY_CORES valueFrom resourceFieldRef resource",
        "requests.cpu",
    ),
    ("as it comes", "Deployment triton", f"{TRITON} env GATEWAY_TRITON_ALONE value", "true"),
    ("as it comes", "NetworkPolicy triton", "spec egress", []),
    ("as it comes", "NetworkPolicy triton", "spec ingress 0 ports", [{"port": 8001}]),
    ("as it comes", "NetworkPolicy triton", "spec ingress 1 from 1", None),
    ("cert-manager-mutual-tls", "ConfigMap gateway", "data GATEWAY_TRITON_SERVER_NAME", "images-triton"),
    # Triton's private key is not the gateway's.
    (
        "cert-manager-mutual-tls",
        "Deployment gateway",
        f"{POD} volumes triton-ca secret items",
        [{"key": "ca.crt", "path": "ca.crt"}],
    ),
    ("claims-of-the-chart", "PersistentVolumeClaim models", "metadata annotations helm.sh/resource-policy", "keep"),
    ("eks-irsa", "Deployment triton", f"{POD} automountServiceAccountToken", False),
    ("envoy-in-front-of-tritons", "ConfigMap gateway", "data GATEWAY_HEAL", "false"),
    ("envoy-in-front-of-tritons", "ConfigMap gateway", "data GATEWAY_LOAD_MODELS", None),
    ("envoy-in-front-of-tritons", "NetworkPolicy triton", "spec ingress 0 from 1 podSelector matchLabels app", "envoy"),
    ("gateway-api", "NetworkPolicy gateway", "spec ingress 0 ports", [{"port": 8080}, {"port": 8081}]),
    ("gateway-api", "NetworkPolicy gateway", "spec ingress 0 from 3", None),
    (
        "redis-cache",
        "Deployment triton",
        f"{TRITON} env TRITONCACHE_REDIS_PASSWORD valueFrom secretKeyRef",
        {"name": "redis", "key": "redis-password"},
    ),
    (
        "redis-cache",
        "NetworkPolicy triton",
        "spec egress 1 ports",
        [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}, {"port": 6380}],
    ),
    ("scale-to-zero", "ConfigMap gateway", "data GATEWAY_HOLD_WITHOUT_TRITON", "true"),
    ("scale-to-zero", "ScaledObject triton", "spec triggers 0 metadata threshold", "48"),
]


@pytest.mark.parametrize(("name", "thing", "path", "value"), VALUES)
def test_set_has_its_values(releases, name, thing, path, value):
    kind, part = thing.split()
    assert at(find(releases[name], kind, f"-{part}"), path) == value


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("cert-manager-mutual-tls", {"--grpc-use-ssl=true", "--grpc-use-ssl-mutual=true"}),
        ("redis-cache", {"--cache-config=redis,host=redis-master.cache.svc", "--cache-config=redis,port=6380"}),
    ],
)
def test_triton_has_the_arguments_of_a_set(releases, name, arguments):
    assert arguments <= set(container(releases[name], "triton")["args"])
