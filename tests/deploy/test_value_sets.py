"""Sets of values as platform teams use them, one file each in values/: the chart takes each of them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.generate.helm import Rendered, render
from tests.deploy.kubernetes_schemas import VERSIONS, container, faults, find, pod, template

FILES = {path.stem: path for path in sorted((Path(__file__).parent / "values").glob("*.yaml"))}
FOREIGN = {"Certificate", "DestinationRule", "ExternalSecret", "Route"}
"""Kinds that the sets bring with `extraObjects` and whose schemas are not here."""
SINCE = {"dynamic-resource-allocation": "1.33.0"}
"""Sets that need a newer Kubernetes than the chart does."""


@pytest.fixture(scope="module")
def releases() -> dict[str, Rendered]:
    values = [yaml.safe_load(path.read_text()) for path in FILES.values()]
    return dict(zip(FILES, render(values), strict=True))


def test_there_are_sets_for_many_platforms():
    assert len(FILES) >= 60


@pytest.mark.parametrize("name", FILES)
def test_set_is_accepted(releases, name):
    release = releases[name]
    assert not release.error
    assert not release.findings
    assert {"Deployment", "Service", "ConfigMap"} <= {each["kind"] for each in release.documents}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_matches_the_schemas(releases, version):
    documents = {
        json.dumps(each): each
        for name, release in releases.items()
        for each in release.documents
        if each["kind"] not in FOREIGN and SINCE.get(name, "") <= version
    }
    assert len(documents) > 100
    assert [fault for each in documents.values() for fault in faults(each, version)] == []


def misspelt(values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each name that the chart defines is spelt wrong in turn."""
    yield from ({**values, f"{key}x": values[key]} for key in values)
    for key in {"gateway", "triton"} & values.keys():
        yield from ({**values, key: {**values[key], f"{inner}x": None}} for inner in values[key])


def test_misspelt_names_of_a_set_are_refused():
    wrong = [(name, each) for name in FILES for each in misspelt(yaml.safe_load(FILES[name].read_text()))]
    assert len(wrong) > 100
    refused = render([values for _, values in wrong])
    accepted = [
        name
        for (name, _), each in zip(wrong, refused, strict=True)
        if "additional properties" not in each.error.lower()
    ]
    assert accepted == []


def test_openshift_chooses_the_ids(releases):
    for name in ("openshift-restricted-v2", "keda-openshift-monitoring"):
        for each in releases[name].documents:
            assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(_names(each)), each["metadata"]["name"]
        assert pod(releases[name], "triton")["securityContext"]["runAsNonRoot"] is True


def _names(value: object) -> list[str]:
    """Every name of a map, at any depth."""
    if isinstance(value, dict):
        return [*value, *(name for each in value.values() for name in _names(each))]
    return [name for each in value for name in _names(each)] if isinstance(value, list) else []


@pytest.mark.parametrize("name", ["eks-irsa", "gke-workload-identity", "aks-workload-identity"])
def test_pods_have_the_identity_that_is_annotated(releases, name):
    release = releases[name]
    (account,) = [each for each in release.documents if each["kind"] == "ServiceAccount"]
    assert account["metadata"]["annotations"]
    assert pod(release, "triton")["serviceAccountName"] == account["metadata"]["name"]
    assert "serviceAccountName" not in pod(release, "gateway")
    assert pod(release, "triton")["automountServiceAccountToken"] is False, "the cloud mounts a token of its own"


def test_models_of_a_bucket_are_copied_and_followed(releases):
    release = releases["eks-irsa"]
    (first,) = pod(release, "triton")["initContainers"]
    pull = ["gateway", "model", "pull", "s3://example-models/production", "/models/repository"]
    assert first["command"] == pull
    follow = next(each for each in pod(release, "triton")["containers"] if each["name"] == "models-follow")
    assert follow["command"] == [*pull, "--follow", "30", "--triton", "http://127.0.0.1:8000"]
    for each in (first, follow):
        assert each["image"].startswith("triton-image-gateway/gateway:")
        assert {"name": "AWS_REGION", "value": "eu-central-1"} in each["env"]
        assert {"name": "models", "mountPath": "/models"} in each["volumeMounts"]
    mounts = container(release, "triton")["volumeMounts"]
    assert {"name": "models", "mountPath": "/models", "subPath": "repository", "readOnly": True} in mounts
    egress = find(release, "NetworkPolicy", "-triton")["spec"]["egress"]
    assert {"port": 443} in [port for rule in egress for port in rule["ports"]]
    azure = pod(releases["aks-workload-identity"], "triton")
    assert [each["name"] for each in azure["containers"]] == ["triton"], "no container follows"


def test_triton_reads_a_bucket_itself(releases):
    release = releases["gke-workload-identity"]
    args = container(release, "triton")["args"]
    assert args[:2] == ["tritonserver", "--model-repository=gs://example-models/production"]
    assert "--model-repository=/models" not in args
    assert "initContainers" not in pod(release, "triton")


def test_labels_reach_pods_and_no_selector(releases):
    release = releases["ci-common-labels"]
    for each in release.documents:
        assert each["metadata"]["labels"]["example.com/team"] == "vision", each["kind"]
    for part, tier in (("gateway", "edge"), ("triton", "gpu")):
        labels = template(release, part)["metadata"]["labels"]
        assert labels["example.com/tier"] == tier
        assert labels["example.com/cost-centre"] == "4711"
        selector = find(release, "Deployment", f"-{part}")["spec"]["selector"]["matchLabels"]
        assert {key.partition("/")[0] for key in selector} == {"app.kubernetes.io"}
        assert selector.items() <= labels.items()


def test_pod_labels_cannot_replace_those_of_the_selector():
    name = "app.kubernetes.io/component"
    (release,) = render([{"commonLabels": {name: "a"}, "gateway": {"podLabels": {name: "b"}}}])
    assert template(release, "gateway")["metadata"]["labels"][name] == "gateway"


def test_another_name_is_in_labels_and_selectors(releases):
    labels = find(releases["argo-cd"], "Deployment", "search-gateway")["spec"]["selector"]["matchLabels"]
    assert labels["app.kubernetes.io/name"] == "image-search"


def test_digests_replace_tags(releases):
    release = releases["private-registry-by-digest"]
    for part in ("gateway", "triton"):
        repository, _, digest = container(release, part)["image"].partition("@")
        assert repository == f"registry.example.com/mirror/triton-image-gateway/{part}"
        assert digest.startswith("sha256:")
        assert pod(release, part)["imagePullSecrets"] == [{"name": "mirror"}]


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


@pytest.mark.parametrize("name", ["envoy-in-front-of-tritons", "linkerd-mesh"])
def test_nothing_is_loaded_through_a_balancer(releases, name):
    variables = find(releases[name], "ConfigMap", "-gateway")["data"]
    assert variables["GATEWAY_HEAL"] == "false"
    assert "GATEWAY_LOAD_MODELS" not in variables
    assert variables["GATEWAY_TRITON_URL"] != "images-triton:8001"


def test_balancer_may_reach_tritons(releases):
    inferences, _ = find(releases["envoy-in-front-of-tritons"], "NetworkPolicy", "-triton")["spec"]["ingress"]
    assert [each["podSelector"]["matchLabels"].get("app") for each in inferences["from"]] == [None, "envoy"]


def test_liveness_probe_uses_the_default_model_of_the_gateways(releases):
    for probe in ("startupProbe", "livenessProbe"):
        assert "flowers" in container(releases["envoy-in-front-of-tritons"], "triton")[probe]["exec"]["command"]


def test_scaler_has_authentication_fallback_and_more_triggers(releases):
    spec = find(releases["keda-thanos-with-token"], "ScaledObject", "-triton")["spec"]
    prometheus, cron = spec["triggers"]
    assert prometheus["authenticationRef"] == {"name": "thanos"}
    assert prometheus["metadata"]["authModes"] == "bearer"
    assert spec["fallback"] == {"failureThreshold": 4, "replicas": 4}
    assert cron["type"] == "cron"


def test_plain_autoscaler_has_the_target_of_keda(releases):
    spec = find(releases["hpa-prometheus-adapter"], "HorizontalPodAutoscaler", "-triton")["spec"]
    (metric,) = spec["metrics"]
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": "120"}
    gateway = find(releases["hpa-prometheus-adapter"], "HorizontalPodAutoscaler", "-gateway")["spec"]
    assert [each["type"] for each in gateway["metrics"]] == ["Resource", "Pods"]


def test_slices_of_gpus_count_as_gpus(releases):
    """A slice can have in flight what a GPU can: 16 images for each of 3 cores, and 128."""
    variables = find(releases["gpu-slices"], "ConfigMap", "-gateway")["data"]
    assert int(variables["GATEWAY_MAX_IMAGES_IN_FLIGHT"]) == 3 * 16 + 128


def test_containers_join_those_of_the_chart(releases):
    names = [each["name"] for each in pod(releases["log-shipper-sidecar"], "gateway")["containers"]]
    assert names == ["gateway", "fluent-bit"]
    assert [each["name"] for each in pod(releases["models-from-nfs"], "triton")["initContainers"]] == ["approve"]
    assert pod(releases["vault-agent"], "gateway")["automountServiceAccountToken"] is True


def test_pods_take_any_field(releases):
    spec = pod(releases["company-proxy-and-ca"], "gateway")
    assert spec["hostAliases"][0]["ip"] == "10.1.2.3"
    assert spec["containers"][0]["envFrom"][-1] == {"configMapRef": {"name": "company-proxy"}}
    assert pod(releases["batch-scheduler-on-spot-gpus"], "triton")["schedulerName"] == "volcano"


def test_service_has_a_fixed_port_of_the_nodes(releases):
    spec = find(releases["node-port-on-premises"], "Service", "-gateway")["spec"]
    assert spec["ports"][0]["nodePort"] == 30080
    balancer = find(releases["metallb-load-balancer"], "Service", "-gateway")["spec"]
    assert balancer["loadBalancerSourceRanges"] == ["10.0.0.0/8", "192.168.7.0/24"]
    assert "nodePort" not in balancer["ports"][0]


def test_units_of_limits_become_numbers_where_they_are_used(releases):
    release = releases["limits-with-units"]
    annotations = find(release, "Ingress", "-gateway")["metadata"]["annotations"]
    assert annotations["nginx.ingress.kubernetes.io/proxy-body-size"] == str(2 * 2**30)
    assert annotations["nginx.ingress.kubernetes.io/proxy-read-timeout"] == "130"
    # The delay of 10 s, the grace, and 10 s more.
    assert pod(release, "gateway")["terminationGracePeriodSeconds"] == 65
    assert find(release, "ConfigMap", "-gateway")["data"]["GATEWAY_MAX_REQUEST_BYTES"] == "2GiB"
    for wrong in ("2GIB", "2 apples", "GiB"):
        (refused,) = render([{"gateway": {"settings": {"GATEWAY_MAX_REQUEST_BYTES": wrong}}}])
        assert "GATEWAY_MAX_REQUEST_BYTES" in refused.error


def test_paths_of_an_ingress(releases):
    rules = find(releases["ingress-with-paths"], "Ingress", "-gateway")["spec"]["rules"]
    assert [rule["host"] for rule in rules] == ["images.example.com", "pictures.example.com"]
    for rule in rules:
        paths = [(each["path"], each["pathType"]) for each in rule["http"]["paths"]]
        assert paths == [("/predict", "Exact"), ("/models", "Prefix")]


def test_budget_has_one_of_two_numbers(releases):
    for name, wanted in (("budget-by-minimum", {"minAvailable"}), ("vault-agent", {"maxUnavailable"})):
        for part in ("gateway", "triton"):
            spec = find(releases[name], "PodDisruptionBudget", f"-{part}")["spec"]
            assert spec.keys() & {"minAvailable", "maxUnavailable"} == wanted
    (release,) = render([{"gateway": {"pdb": {"minAvailable": 0}}}])
    assert find(release, "PodDisruptionBudget", "-gateway")["spec"]["minAvailable"] == 0


def test_created_claims_are_mounted_and_stay(releases):
    release = releases["claims-of-the-chart"]
    claims = {each["metadata"]["name"]: each for each in release.documents if each["kind"] == "PersistentVolumeClaim"}
    volumes = pod(release, "triton")["volumes"]
    mounted = {each["persistentVolumeClaim"]["claimName"] for each in volumes if "persistentVolumeClaim" in each}
    assert mounted == claims.keys() == {"images-triton-models", "images-triton-tensorrt"}
    models = claims["images-triton-models"]
    assert models["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert models["spec"]["storageClassName"] == "efs"
    assert models["spec"]["resources"] == {"requests": {"storage": "50Gi"}}
    assert claims["images-triton-tensorrt"]["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert "PersistentVolumeClaim" not in {each["kind"] for each in releases["existing-claims"].documents}


def test_services_have_the_families_of_addresses(releases):
    for part in ("gateway", "triton"):
        spec = find(releases["ipv6-alone"], "Service", f"-{part}")["spec"]
        assert (spec["ipFamilyPolicy"], spec["ipFamilies"]) == ("SingleStack", ["IPv6"])
        assert "ipFamilyPolicy" not in find(releases["vault-agent"], "Service", f"-{part}")["spec"]


def test_probes_have_the_given_numbers(releases):
    release = releases["slow-nodes-slow-probes"]
    assert container(release, "gateway")["readinessProbe"]["initialDelaySeconds"] == 5
    assert container(release, "gateway")["livenessProbe"]["periodSeconds"] == 30
    assert container(release, "triton")["readinessProbe"]["periodSeconds"] == 15


def test_history_of_deployments_is_limited(releases):
    limits = {
        part: find(releases["few-revisions"], "Deployment", f"-{part}")["spec"]["revisionHistoryLimit"]
        for part in ("gateway", "triton")
    }
    assert limits == {"gateway": 3, "triton": 0}


def test_gateway_is_closed_to_prometheus_where_there_is_none(releases):
    (rule,) = find(releases["network-policy-without-prometheus"], "NetworkPolicy", "-gateway")["spec"]["ingress"]
    assert [next(iter(each)) for each in rule["from"]] == ["namespaceSelector", "podSelector"]
