"""The Helm chart: for all values, Kubernetes accepts its objects, and they fit the code and each other."""

import math
from typing import Any

import pytest

from deploy.generate.helm import Rendered, render
from gateway.machine.capacity import (
    IN_FLIGHT_PER_CORE,
    IN_FLIGHT_PER_GPU,
    MIN_IN_FLIGHT,
    SHARED_BYTES,
    plan,
)
from gateway.settings import variable
from gateway.triton.client import LOAD_TIMEOUT_SECONDS
from gateway_local.server import EXIT_TIMEOUT_SECONDS
from tests.deploy.conftest import SETS
from tests.deploy.kubernetes_schemas import container, find, pod
from tests.settings import Settings

OTHER = {"envoy-in-front-of-tritons"}
"""Sets that deliberately differ from every other release: test_value_sets tests them."""


@pytest.fixture(params=[name for name in SETS if name not in OTHER])
def release(request, releases) -> Rendered:
    return releases[request.param]


def variables(release: Rendered) -> dict[str, str]:
    return find(release, "ConfigMap", "-gateway")["data"]


def test_gateway_answers_under_the_names_of_its_service_ingress_and_route():
    ingress = {"enabled": True, "hosts": ["images.example"]}
    route = {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": ["*.lab.example"]}
    own = {"gateway": {"settings": {"GATEWAY_HOSTS": "other.example"}}}
    plain, exposed = render([{}, {"ingress": ingress, "httpRoute": route, **own}])
    service = find(plain, "Service", "-gateway")["metadata"]["name"]
    names = [f"{service}.vision", f"{service}.vision.svc"]
    assert variables(plain)["GATEWAY_HOSTS"].split(",") == names
    hosts = variables(exposed)["GATEWAY_HOSTS"]
    assert hosts.split(",") == [*names, "images.example", "*.lab.example", "other.example"]
    assert Settings(_env_file=None, hosts=hosts).hosts[0] == names[0]


def test_limits_and_shared_memory_fit_the_cores_and_gpus():
    """Gateways may have as many images in flight as their Triton servers process, and shared memory suffices."""
    cases: list[tuple[float, int, float, dict[str, Any]]] = []
    for cores, text in ((0.5, "500m"), (4, "4"), (16, 16), (64, "64")):
        for gpus in (0, 1, 8):
            limits = {"nvidia.com/gpu": gpus} if gpus else {"memory": "8Gi"}
            resources = {"requests": {"cpu": text}, "limits": limits}
            cases.append((cores, gpus, 1, {"triton": {"resources": resources}}))
    scaled = {"autoscaling": {"enabled": True, "maxReplicas": 6}}
    cases.append((4, 1, 2, {"triton": scaled, "gateway": {"autoscaling": {"enabled": True, "maxReplicas": 3}}}))
    releases = render([values for *_, values in cases])
    for (cores, gpus, tritons_of_each_gateway, _), release in zip(cases, releases, strict=True):
        assert not release.error
        found = variables(release)
        wanted = tritons_of_each_gateway * (IN_FLIGHT_PER_CORE * cores + IN_FLIGHT_PER_GPU * gpus)
        assert int(found["GATEWAY_MAX_IMAGES_IN_FLIGHT"]) == max(MIN_IN_FLIGHT, math.ceil(wanted / 8) * 8)
        (volume,) = [each for each in pod(release, "triton")["volumes"] if each["name"] == "shared-memory"]
        size = volume["emptyDir"]["sizeLimit"]
        assert size.endswith("Mi")
        chosen = plan(cores, gpus, triton_alone=True)
        # NVIDIA's backends run networks without separate processes.
        processes = chosen.preprocessors + (0 if gpus else chosen.networks)
        assert processes * SHARED_BYTES <= int(size[:-2]) * 2**20 <= (max(2, cores) + 3) * SHARED_BYTES


def test_every_variable_is_a_setting_and_the_grace_of_a_pod_exceeds_those_of_its_shutdown(release):
    fields = {variable(field): field for field in Settings.variables()}
    given = Settings(_env_file=None, **{fields[name]: value for name, value in variables(release).items()})
    stop_seconds = given.shutdown_delay_seconds + given.shutdown_grace_seconds
    assert pod(release, "gateway")["terminationGracePeriodSeconds"] > stop_seconds
    assert pod(release, "triton")["terminationGracePeriodSeconds"] > EXIT_TIMEOUT_SECONDS


def test_ports_have_one_meaning_and_a_headless_service_publishes_every_triton_ready_or_not(release):
    host, _, port = variables(release)["GATEWAY_TRITON_URL"].partition(":")
    headless = find(release, "Service", host)["spec"]
    assert headless["clusterIP"] == "None"
    assert headless["publishNotReadyAddresses"] is True
    assert int(port) in [each["port"] for each in headless["ports"]]
    named = {each["name"]: each["containerPort"] for each in container(release, "triton")["ports"]}
    service = {each["name"]: each["port"] for each in find(release, "Service", "-triton")["spec"]["ports"]}
    assert service.items() <= named.items()
    http, *grpc = container(release, "gateway")["ports"]
    assert http["containerPort"] == int(variables(release)["GATEWAY_PORT"])
    assert [each["containerPort"] for each in grpc] == [
        int(value) for name, value in variables(release).items() if name == "GATEWAY_GRPC_PORT"
    ]
    ports = find(release, "Service", "-gateway")["spec"]["ports"]
    assert [each["targetPort"] for each in ports] == [each["name"] for each in (http, *grpc)]


def test_probes_ask_for_health_and_fail_only_after_recovery_had_time(release):
    """The start waits for the model of the liveness probe."""
    gateway, triton = container(release, "gateway"), container(release, "triton")
    assert gateway["livenessProbe"]["httpGet"]["path"] == "/health/live"
    assert triton["readinessProbe"]["httpGet"]["path"] == "/v2/health/ready"
    start, alive = triton["startupProbe"]["exec"]["command"], triton["livenessProbe"]["exec"]["command"]
    assert start[:3] == alive[:3] == ["python3", "/scripts/alive.py", "ensemble_model"]
    assert "--loaded" in start
    assert "alive.py" in find(release, "ConfigMap", "-triton-scripts")["data"]
    probe = triton["livenessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] > LOAD_TIMEOUT_SECONDS
    assert int(alive[-1]) < probe["timeoutSeconds"]


@pytest.mark.parametrize("part", ["gateway", "triton"])
def test_pods_run_with_few_rights(release, part):
    spec = pod(release, part)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    for each in (*spec["containers"], *spec.get("initContainers", [])):
        assert each["securityContext"]["allowPrivilegeEscalation"] is False
        assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_selectors_match_their_pods_and_no_others(release):
    labels = {
        part: find(release, "Deployment", f"-{part}")["spec"]["template"]["metadata"]["labels"]
        for part in ("gateway", "triton")
    }
    for document in release.documents:
        spec = document.get("spec", {})
        if document["kind"] in {"Service", "Deployment", "PodDisruptionBudget", "NetworkPolicy"}:
            selector = spec.get("selector", spec.get("podSelector"))
            wanted = selector.get("matchLabels", selector)
            part = document["metadata"]["name"].rpartition("-")[2]
            found = [name for name, each in labels.items() if wanted.items() <= each.items()]
            assert found == [part], document["metadata"]["name"]


def test_every_file_that_a_variable_names_is_in_a_volume(release):
    """Keys, and the certificates of both sides of TLS."""
    for part in ("gateway", "triton"):
        mounts = {each["mountPath"] for each in container(release, part)["volumeMounts"]}
        options = [option.partition("=")[2] for option in container(release, "triton").get("args", [])]
        named = {
            "gateway": [value for name, value in variables(release).items() if name.endswith("_FILE")],
            "triton": [path for path in options if path.startswith("/etc/")],
        }
        assert {path.rpartition("/")[0] for path in named[part]} <= mounts


def test_triton_starts_with_the_default_model_if_the_others_are_loaded_on_demand():
    on_demand = {"GATEWAY_MODELS_MEMORY_BYTES": 6 * 2**30}
    (release,) = render([{"gateway": {"settings": on_demand}}])
    loaded = [each for each in container(release, "triton")["args"] if each.startswith("--load-model=")]
    assert loaded == ["--load-model=ensemble_model"]
    assert "GATEWAY_LOAD_MODELS" not in variables(release)


def test_changed_settings_cause_a_rollout(releases):
    def annotations(release: str, part: str) -> dict[str, str]:
        return find(releases[release], "Deployment", f"-{part}")["spec"]["template"]["metadata"]["annotations"]

    key = "checksum/settings"
    assert annotations("scale-to-zero", "gateway")[key] != annotations("as it comes", "gateway")[key]


def test_tritons_scale_by_the_images_of_each_whatever_the_number_of_gateways():
    scaled = {"triton": {"autoscaling": {"enabled": True}}}
    sets = [{"gateway": {"replicas": gateways}, **scaled} for gateways in (1, 10)]
    (trigger,), others = (find(release, "ScaledObject", "-triton")["spec"]["triggers"] for release in render(sets))
    assert others == [trigger]
    assert trigger["metricType"] == "AverageValue", "divided by the Tritons, not by the limits of the gateways"
    assert float(trigger["metadata"]["threshold"]) == math.ceil(0.7 * (4 * IN_FLIGHT_PER_CORE + IN_FLIGHT_PER_GPU))
    assert trigger["metadata"]["ignoreNullValues"] == "false", "no data is no idle fleet"


def test_uploads_of_the_largest_size_and_time_pass_an_ingress_and_a_route(releases):
    fields = Settings.model_fields
    nginx = find(releases["cert-manager-mutual-tls"], "Ingress", "-gateway")["metadata"]["annotations"]
    prefix = "nginx.ingress.kubernetes.io/"
    assert int(nginx[f"{prefix}proxy-body-size"]) == fields["max_request_bytes"].default
    assert nginx[f"{prefix}proxy-request-buffering"] == "off"
    assert int(nginx[f"{prefix}proxy-read-timeout"]) > fields["max_timeout_seconds"].default
    (rule,) = find(releases["gateway-api"], "HTTPRoute", "-gateway")["spec"]["rules"]
    longest = fields["upload_timeout_seconds"].default + fields["max_timeout_seconds"].default
    assert int(rule["timeouts"]["request"].removesuffix("s")) > longest


REDIS = {"redis": {"host": "redis"}}
WRONG = [
    ({"profile": "cpu", "triton": REDIS, "gateway": {"cacheSecret": {"secretName": "s"}}}, "no Redis cache"),
    ({"triton": REDIS}, "gateway.cacheSecret.secretName"),
    ({"triton": {**REDIS, "args": ["tritonserver"]}, "gateway": {"cacheSecret": {"secretName": "s"}}}, "triton.args"),
    ({"gateway": {"replica": 2}}, "'replica'"),
    ({"profile": "tpu"}, "/profile"),
    ({"gateway": {"settings": {"GATEWAY_MAX_WAITING": 3}}}, "'GATEWAY_MAX_WAITING'"),
    ({"gateway": {"settings": {"GATEWAY_TRITON_URL": "elsewhere:8001"}}}, "'GATEWAY_TRITON_URL'"),
    ({"gateway": {"settings": {"GATEWAY_CACHE_SECRET": "0123456789abcdef"}}}, "'GATEWAY_CACHE_SECRET'"),
    ({"gateway": {"image": {"digest": "sha256:abc"}}}, "/gateway/image/digest"),
    ({"gateway": {"service": {"nodePort": 30080}}}, "gateway.service.nodePort"),
    ({"gateway": {"tritonUrl": "http://triton:8001"}}, "/gateway/tritonUrl"),
    ({"gateway": {"tritonUrl": "e:1", "settings": {"GATEWAY_HEAL": True}}}, "gateway.settings.GATEWAY_HEAL"),
    ({"gateway": {"tritonUrl": "e:1", "adminKeys": {"secretName": "a"}}}, "gateway.adminKeys.secretName"),
    ({"triton": {"tls": {"clientSecretName": "a"}}}, "triton.tls.secretName"),
    (
        {
            "triton": {"autoscaling": {"enabled": True, "by": "hpa", "scaleToZero": True}},
            "gateway": {"settings": {"GATEWAY_MAX_WAIT_SECONDS": 60, "GATEWAY_DEFAULT_TIMEOUT_SECONDS": 60}},
        },
        "triton.autoscaling.scaleToZero",
    ),
    ({"triton": {"models": {"source": "pvc"}}}, "triton.models.pvc.claimName"),
    ({"triton": {"models": {"source": "bucket"}}}, "triton.models.bucket.url"),
    (
        {"profile": "cpu", "triton": {"models": {"source": "bucket", "bucket": {"url": "s3://b/m", "native": True}}}},
        "triton.models.bucket.native",
    ),
    ({"triton": {"models": {"bucket": {"url": "ftp://b/m"}}}}, "/triton/models/bucket/url"),
    ({"triton": {"strategy": {"maxSurge": 0}}}, "triton.strategy"),
    ({"triton": {"autoscaling": {"enabled": True, "minReplicas": 0}}}, "triton.autoscaling.minReplicas"),
    (
        {"triton": {"autoscaling": {"enabled": True, "minReplicas": 0, "scaleToZero": True}}},
        "gateway.settings.GATEWAY_MAX_WAIT_SECONDS",
    ),
    ({"ingress": {"enabled": True}}, "ingress.hosts"),
    ({"httpRoute": {"enabled": True}}, "httpRoute.parentRefs"),
    ({"gateway": {"autoscaling": {"minReplicas": 20}}}, "gateway.autoscaling.minReplicas"),
]


def test_a_wrong_value_is_refused_by_its_name():
    for (values, name), refused in zip(WRONG, render([values for values, _ in WRONG]), strict=True):
        assert refused.error, values
        assert name in refused.error, values
