"""The Helm chart: whatever values are set, Kubernetes takes what becomes of them, and it fits the code and itself."""

import copy
import json
import math
import re
from typing import Any

import pytest
import yaml

from deploy.generate import CHART
from deploy.generate.helm import Rendered, render
from gateway.settings import variable
from gateway_local.server import EXIT_TIMEOUT_SECONDS
from gateway_machine.capacity import (
    CALL_IMAGES,
    IN_FLIGHT_PER_CORE,
    IN_FLIGHT_PER_GPU,
    MIN_IN_FLIGHT,
    MIN_WAITING,
    SHARED_BYTES,
    plan,
)
from gateway_models.repository.tensorrt import TENSORRT_CACHE
from tests.deploy.conftest import compose_file
from tests.deploy.kubernetes_schemas import VERSIONS, container, faults, find, pod
from tests.settings import Settings

SHA256 = "0123456789abcdef" * 4
PARENT = {"name": "public", "namespace": "infra", "sectionName": "https"}
MATRIX: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "on processors": {"profile": "cpu"},
    "a prefix": {"fullnameOverride": "flowers"},
    "keys": {
        "gateway": {
            "apiKeys": {"secretName": "api"},
            "adminKeys": {"secretName": "admin", "key": "file"},
            "cacheSecret": {"secretName": "cache"},
        }
    },
    "keys and one for the test": {
        "gateway": {"apiKeys": {"secretName": "api"}},
        "test": {"apiKeySecretName": "test-key"},
    },
    "settings": {
        "gateway": {
            "settings": {
                "GATEWAY_MAX_REQUEST_BYTES": 8 * 2**30,
                "GATEWAY_MAX_WAIT_SECONDS": 2.5,
                "GATEWAY_HEAL": False,
                "GATEWAY_SHUTDOWN_DELAY_SECONDS": 0,
                "GATEWAY_SHUTDOWN_GRACE_SECONDS": 120,
                "GATEWAY_MODEL_SPLIT": "flowers=1:90,2:10",
                "GATEWAY_LOG_LEVEL": "warning",
            },
            "extraEnv": [{"name": "OTEL_TRACES_SAMPLER", "value": "always_off"}],
        }
    },
    "autoscaling": {
        "gateway": {"autoscaling": {"enabled": True, "maxReplicas": 50}},
        "triton": {"autoscaling": {"enabled": True, "maxReplicas": 64}},
        "monitoring": {"serviceMonitor": {"enabled": True}},
    },
    "to zero": {
        "triton": {"autoscaling": {"enabled": True, "minReplicas": 0, "scaleToZero": True}},
        "gateway": {"settings": {"GATEWAY_MAX_WAIT_SECONDS": 240, "GATEWAY_DEFAULT_TIMEOUT_SECONDS": 270}},
    },
    "models from a claim": {
        "profile": "cpu",
        "triton": {"models": {"source": "pvc", "pvc": {"claimName": "models", "subPath": "production"}}},
    },
    "models from a bucket": {
        "triton": {"models": {"source": "bucket", "bucket": {"url": "https://b.example/m.tar.gz", "sha256": SHA256}}}
    },
    "models from a bucket with a secret": {
        "profile": "cpu",
        "triton": {
            "models": {"source": "bucket", "bucket": {"secretName": "m", "sha256": SHA256, "image": "python:3.12-slim"}}
        },
    },
    "no spare GPU": {"triton": {"strategy": {"maxSurge": 0, "maxUnavailable": 1}}},
    "an Ingress": {
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "hosts": ["vision.example.com"],
            "tls": [{"secretName": "tls", "hosts": ["vision.example.com"]}],
        }
    },
    "an Ingress of NGINX Inc.": {
        "ingress": {"enabled": True, "hosts": ["a.example"], "preset": "nginx-inc", "annotations": {"x": "y"}}
    },
    "an Ingress of another kind": {"ingress": {"enabled": True, "hosts": ["a.example"], "preset": ""}},
    "an HTTPRoute": {"httpRoute": {"enabled": True, "parentRefs": [PARENT], "hostnames": ["vision.example.com"]}},
    "monitoring": {
        "monitoring": {
            "serviceMonitor": {
                "enabled": True,
                "labels": {"release": "prometheus"},
                "authorization": {"credentials": {"name": "metrics", "key": "token"}},
            },
            "rules": {
                "enabled": True,
                "labels": {"release": "prometheus"},
                "runbookBase": "https://git.example/tig/blob/main/",
            },
            "dashboards": {"enabled": True, "annotations": {"grafana_folder": "Vision"}},
        }
    },
    "who may reach what": {
        "networkPolicy": {
            "gatewayFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}],
            "isolateTriton": False,
        },
        "gateway": {"settings": {"GATEWAY_GRPC_PORT": 8081}},
    },
    "no policies and no budgets": {
        "networkPolicy": {"enabled": False},
        "gateway": {"pdb": {"enabled": False}},
        "triton": {"pdb": {"enabled": False}},
    },
    "answers shared in Redis": {
        "triton": {
            "redis": {"host": "redis.cache.svc", "port": 6380, "secretName": "redis"},
            "extraEnv": [{"name": "NVIDIA_TF32_OVERRIDE", "value": "0"}],
            "tensorrtCache": {"claimName": "engines"},
        },
        "gateway": {"cacheSecret": {"secretName": "cache"}},
    },
    "models on demand": {
        "gateway": {"settings": {"GATEWAY_MODELS_LOADED": "demand", "GATEWAY_MODELS_MEMORY_BYTES": 6 * 2**30}},
    },
    "models on demand, on processors": {
        "profile": "cpu",
        "gateway": {
            "settings": {
                "GATEWAY_MODELS_LOADED": "demand",
                "GATEWAY_MODELS_MEMORY_BYTES": 6 * 2**30,
                "GATEWAY_LOAD_MODELS": "birds",
            }
        },
    },
    "where pods go": {
        "imagePullSecrets": [{"name": "registry"}],
        "triton": {
            "nodeSelector": {"gpu": "l4"},
            "tolerations": [],
            "runtimeClassName": "nvidia",
            "priorityClassName": "inference",
            "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
            "topologySpread": {"topologyKeys": [], "whenUnsatisfiable": "DoNotSchedule"},
            "resources": {"limits": {"nvidia.com/gpu": 2, "memory": "24Gi"}},
            "image": {"repository": "registry.example/triton", "tag": "v7"},
            "args": ["tritonserver", "--model-repository=/models"],
            "podAnnotations": {"a": "b"},
        },
        "gateway": {
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "service": {"type": "LoadBalancer", "port": 8080, "annotations": {"lb": "internal"}},
        },
    },
}


@pytest.fixture(scope="module")
def releases() -> dict[str, Rendered]:
    return dict(zip(MATRIX, render(list(MATRIX.values())), strict=True))


@pytest.fixture(params=MATRIX)
def release(request, releases) -> Rendered:
    return releases[request.param]


@pytest.fixture(scope="module")
def of_sizes() -> list[tuple[float, int, float, Rendered]]:
    """The chart for Tritons with some cores and GPUs; and how many Tritons there are for each gateway."""
    cases: list[tuple[float, int, float, dict[str, Any]]] = []
    for cores, text in ((0.5, "500m"), (4, "4"), (16, 16), (64, "64")):
        for gpus in (0, 1, 8):
            limits = {"nvidia.com/gpu": gpus} if gpus else {"memory": "8Gi"}
            resources = {"requests": {"cpu": text}, "limits": limits}
            cases.append((cores, gpus, 1, {"triton": {"resources": resources}}))
    scaled = {"autoscaling": {"enabled": True, "maxReplicas": 6}}
    cases.append((4, 1, 2, {"triton": scaled, "gateway": {"autoscaling": {"enabled": True, "maxReplicas": 3}}}))
    releases = render([values for *_, values in cases])
    return [(*case[:3], release) for case, release in zip(cases, releases, strict=True)]


def test_gateways_may_have_in_flight_what_their_tritons_process(of_sizes):
    for cores, gpus, tritons, release in of_sizes:
        assert not release.error
        found = variables(release)
        wanted = tritons * (IN_FLIGHT_PER_CORE * cores + IN_FLIGHT_PER_GPU * gpus)
        assert int(found["GATEWAY_MAX_IMAGES_IN_FLIGHT"]) == max(MIN_IN_FLIGHT, math.ceil(wanted / 8) * 8)
        assert int(found["GATEWAY_MAX_IMAGES_WAITING"]) == max(MIN_WAITING, math.ceil(wanted / 8) * 8)
        assert found["GATEWAY_BATCH_MAX_IMAGES"] == str(CALL_IMAGES)


def test_limits_that_are_set_win_over_the_computed_ones():
    values = {"gateway": {"settings": {"GATEWAY_MAX_IMAGES_IN_FLIGHT": 40}}}
    assert variables(render([values])[0])["GATEWAY_MAX_IMAGES_IN_FLIGHT"] == "40"


def test_models_are_sized_to_the_requested_processors(releases):
    for release in releases.values():
        sources = {each["name"]: each.get("valueFrom") for each in container(release, "triton")["env"]}
        assert sources["GATEWAY_CORES"] == {"resourceFieldRef": {"resource": "requests.cpu"}}
        assert {"name": "GATEWAY_TRITON_ALONE", "value": "true"} in container(release, "triton")["env"]


def test_shared_memory_suffices_for_the_processes(of_sizes):
    for cores, gpus, _, release in of_sizes:
        (volume,) = [each for each in pod(release, "triton")["volumes"] if each["name"] == "shared-memory"]
        size = volume["emptyDir"]["sizeLimit"]
        assert size.endswith("Mi")
        chosen = plan(cores, gpus, triton_alone=True)
        # NVIDIA's backends run networks without processes of their own.
        processes = chosen.preprocessors + (0 if gpus else chosen.networks)
        assert processes * SHARED_BYTES <= int(size[:-2]) * 2**20 <= (max(2, cores) + 3) * SHARED_BYTES


def variables(release: Rendered) -> dict[str, str]:
    return find(release, "ConfigMap", "-gateway")["data"]


def test_helm_lint_finds_nothing(release):
    assert not release.error
    assert not release.findings
    assert release.documents


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_matches_the_kubernetes_schema(releases, version):
    # Most objects of two sets of values are the same.
    documents = {json.dumps(each): each for release in releases.values() for each in release.documents}
    assert len(documents) > 50
    assert [fault for each in documents.values() for fault in faults(each, version)] == []


def test_a_field_that_kubernetes_does_not_know_is_found(releases):
    document = copy.deepcopy(find(releases["as it comes"], "Deployment", "-gateway"))
    document["spec"]["template"]["spec"]["containers"][0]["imagePolicy"] = "Always"
    (fault,) = faults(document, VERSIONS[-1])
    assert "imagePolicy" in fault


def test_every_expected_kind_is_rendered(releases):
    kinds = {each["kind"] for release in releases.values() for each in release.documents}
    assert kinds == {
        *("ConfigMap", "Deployment", "HTTPRoute", "HorizontalPodAutoscaler", "Ingress", "NetworkPolicy", "Pod"),
        *("PodDisruptionBudget", "PrometheusRule", "ScaledObject", "Service", "ServiceMonitor"),
    }


def test_every_variable_is_a_setting_with_an_allowed_value(release):
    fields = {variable(field): field for field in Settings.model_fields}
    given = {fields[name]: value for name, value in variables(release).items()}
    Settings(_env_file=None, **given)


def test_large_numbers_and_false_values_keep_their_meaning(releases):
    given = variables(releases["settings"])
    assert given["GATEWAY_MAX_REQUEST_BYTES"] == "8589934592"
    assert given["GATEWAY_MAX_WAIT_SECONDS"] == "2.5"
    assert given["GATEWAY_HEAL"] == "false"
    assert given["GATEWAY_SHUTDOWN_DELAY_SECONDS"] == "0"


def test_grace_period_of_a_pod_exceeds_its_shutdown_settings(release):
    given = variables(release)
    stop_seconds = float(given["GATEWAY_SHUTDOWN_DELAY_SECONDS"]) + float(given["GATEWAY_SHUTDOWN_GRACE_SECONDS"])
    assert pod(release, "gateway")["terminationGracePeriodSeconds"] > stop_seconds
    assert pod(release, "triton")["terminationGracePeriodSeconds"] > EXIT_TIMEOUT_SECONDS


def test_headless_service_publishes_every_triton_ready_or_not(release):
    host, _, port = variables(release)["GATEWAY_TRITON_URL"].partition(":")
    service = find(release, "Service", host)["spec"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True
    assert int(port) in [each["port"] for each in service["ports"]]


def test_ports_have_one_meaning(release):
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


def test_policy_lets_grpc_in(releases):
    (rule,) = find(releases["who may reach what"], "NetworkPolicy", "-gateway")["spec"]["ingress"]
    assert [each["port"] for each in rule["ports"]] == [8080, 8081]


def test_probes_use_the_right_paths(release):
    gateway, triton = container(release, "gateway"), container(release, "triton")
    assert gateway["livenessProbe"]["httpGet"]["path"] == "/health/live"
    assert triton["readinessProbe"]["httpGet"]["path"] == "/v2/health/ready"
    assert triton["livenessProbe"]["exec"]["command"][:3] == ["python3", "/scripts/alive.py", "ensemble_model"]
    assert "alive.py" in find(release, "ConfigMap", "-triton-scripts")["data"]


def test_liveness_of_triton_fails_only_after_recovery_had_time(release):
    from gateway.triton.endpoint import LOAD_TIMEOUT_SECONDS

    probe = container(release, "triton")["livenessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] > LOAD_TIMEOUT_SECONDS
    *_, own_timeout = probe["exec"]["command"]
    assert int(own_timeout) < probe["timeoutSeconds"]


def test_gateway_without_a_triton_is_ready_only_with_scale_to_zero(releases):
    def asked(release: str) -> str:
        return container(releases[release], "gateway")["readinessProbe"]["httpGet"]["path"]

    assert asked("as it comes") == "/health/ready"
    assert asked("to zero") == "/health/live"
    assert variables(releases["to zero"])["GATEWAY_HOLD_WITHOUT_TRITON"] == "true"
    assert "GATEWAY_HOLD_WITHOUT_TRITON" not in variables(releases["as it comes"])


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


def test_only_the_gateway_reaches_triton_and_only_prometheus_its_metrics(releases):
    inferences, metrics = find(releases["as it comes"], "NetworkPolicy", "-triton")["spec"]["ingress"]
    (peer,) = inferences["from"]
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "gateway"
    assert "namespaceSelector" not in peer
    assert inferences["ports"] == [{"port": 8001}]
    assert metrics["ports"] == [{"port": 8002}]
    assert metrics["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]


def test_triton_starts_with_few_models_if_they_are_loaded_on_demand(releases, dockerfile):
    """The gateways load the others."""
    release = releases["models on demand"]
    own = dockerfile.stages["triton"].words("CMD")
    args = container(release, "triton")["args"]
    assert args == [option.replace("--load-model=*", "--load-model=ensemble_model") for option in own]
    assert "GATEWAY_LOAD_MODELS" not in variables(release)

    release = releases["models on demand, on processors"]
    given = {each["name"]: each.get("value") for each in container(release, "triton")["env"]}
    assert {name: given[name] for name in variables(release) if "MODEL" in name} == {
        "GATEWAY_MODELS_LOADED": "demand",
        "GATEWAY_MODELS_MEMORY_BYTES": str(6 * 2**30),
        "GATEWAY_LOAD_MODELS": "birds",
    }


def test_triton_opens_no_connection_but_to_fetch_its_models(releases):
    assert find(releases["as it comes"], "NetworkPolicy", "-triton")["spec"]["egress"] == []
    (rule,) = find(releases["models from a bucket"], "NetworkPolicy", "-triton")["spec"]["egress"]
    assert {each["port"] for each in rule["ports"]} == {53, 443}


def test_network_policy_of_the_gateway_admits_prometheus_and_the_test(releases):
    (rule,) = find(releases["who may reach what"], "NetworkPolicy", "-gateway")["spec"]["ingress"]
    labels = [peer["podSelector"]["matchLabels"] for peer in rule["from"] if "podSelector" in peer]
    assert [each["app.kubernetes.io/component"] for each in labels] == ["test"]
    assert len(rule["from"]) == 3


def test_keys_are_mounted_where_the_settings_look(releases):
    release = releases["keys"]
    mounts = {each["mountPath"] for each in container(release, "gateway")["volumeMounts"]}
    for name in ("GATEWAY_API_KEYS_FILE", "GATEWAY_ADMIN_KEYS_FILE"):
        assert variables(release)[name].rpartition("/")[0] in mounts
    assert variables(release)["GATEWAY_ADMIN_KEYS_FILE"].endswith("/file")


def test_no_secret_is_written_into_a_config_map(releases):
    (variable,) = container(releases["keys"], "gateway")["env"]
    assert variable["name"] == "GATEWAY_CACHE_SECRET"
    assert variable["valueFrom"] == {"secretKeyRef": {"name": "cache", "key": "secret"}}
    refused = render([{"gateway": {"settings": {"GATEWAY_CACHE_SECRET": "0123456789abcdef"}}}])[0]
    assert "'GATEWAY_CACHE_SECRET'" in refused.error


def test_changed_settings_or_models_cause_a_rollout(releases):
    def annotations(release: str, part: str) -> dict[str, str]:
        return find(releases[release], "Deployment", f"-{part}")["spec"]["template"]["metadata"]["annotations"]

    key = "checksum/settings"
    assert annotations("settings", "gateway")[key] != annotations("as it comes", "gateway")[key]
    assert annotations("models from a bucket", "triton")["checksum/models"] == SHA256[:16]


def test_autoscalers_own_the_number_of_pods(releases):
    release = releases["autoscaling"]
    for part in ("gateway", "triton"):
        assert "replicas" not in find(release, "Deployment", f"-{part}")["spec"]
    scaler = find(release, "HorizontalPodAutoscaler", "-gateway")
    assert scaler["apiVersion"] == "autoscaling/v2"
    assert scaler["spec"]["scaleTargetRef"]["name"] == "images-gateway"
    assert container(release, "gateway")["resources"]["requests"]["cpu"], "what the share is of"


def test_tritons_scale_by_the_images_of_each(releases):
    spec = find(releases["autoscaling"], "ScaledObject", "-triton")["spec"]
    (trigger,) = spec["triggers"]
    assert trigger["metricType"] == "AverageValue", "divided by the Tritons, not by the limits of the gateways"
    assert "limit" not in trigger["metadata"]["query"]
    assert float(trigger["metadata"]["threshold"]) == math.ceil(0.7 * (4 * IN_FLIGHT_PER_CORE + IN_FLIGHT_PER_GPU))
    assert trigger["metadata"]["ignoreNullValues"] == "false", "no data is no idle fleet"
    behaviour = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    up, down = (behaviour[way]["stabilizationWindowSeconds"] for way in ("scaleUp", "scaleDown"))
    assert 0 < up < down
    selectors = set(re.findall(r"\{[^}]*\}", trigger["metadata"]["query"]))
    assert selectors == {'{namespace="vision", service="images-gateway"}'}


def test_gateways_do_not_move_the_point_where_a_triton_is_added():
    """The target is for each Triton, whatever the number of gateways and the limits of each."""
    sets = [
        {"gateway": {"replicas": gateways}, "triton": {"autoscaling": {"enabled": True}}} for gateways in (1, 2, 10, 50)
    ]
    triggers = [find(release, "ScaledObject", "-triton")["spec"]["triggers"] for release in render(sets)]
    assert triggers[0]
    assert triggers == [triggers[0]] * len(sets)


def test_number_of_images_for_each_triton_can_be_set():
    (release,) = render([{"triton": {"autoscaling": {"enabled": True, "imagesPerTriton": 48}}}])
    (trigger,) = find(release, "ScaledObject", "-triton")["spec"]["triggers"]
    assert trigger["metadata"]["threshold"] == "48"


def test_own_arguments_are_those_of_the_images(dockerfile):
    profiles = yaml.safe_load((CHART / "values.yaml").read_text())["profiles"]
    assert profiles["gpu"]["tritonArgs"] == dockerfile.stages["triton"].words("CMD")
    assert profiles["cpu"]["tritonArgs"] == dockerfile.stages["triton-cpu"].words("CMD")


def test_start_waits_for_the_model_of_the_liveness_probe(release):
    triton = container(release, "triton")
    start, alive = (triton[probe]["exec"]["command"] for probe in ("startupProbe", "livenessProbe"))
    assert start[:3] == alive[:3]
    assert "--loaded" in start


def test_uploads_of_the_largest_size_pass_an_ingress(releases):
    nginx = find(releases["an Ingress"], "Ingress", "-gateway")["metadata"]["annotations"]
    prefix = "nginx.ingress.kubernetes.io/"
    assert int(nginx[f"{prefix}proxy-body-size"]) == Settings.model_fields["max_request_bytes"].default
    assert nginx[f"{prefix}proxy-request-buffering"] == "off"
    assert int(nginx[f"{prefix}proxy-read-timeout"]) > Settings.model_fields["max_timeout_seconds"].default
    inc = find(releases["an Ingress of NGINX Inc."], "Ingress", "-gateway")["metadata"]["annotations"]
    assert inc["nginx.org/client-max-body-size"] == nginx[f"{prefix}proxy-body-size"]
    assert inc["x"] == "y"
    assert "annotations" not in find(releases["an Ingress of another kind"], "Ingress", "-gateway")["metadata"]


def test_a_route_waits_longer_than_the_gateway_does(releases):
    (rule,) = find(releases["an HTTPRoute"], "HTTPRoute", "-gateway")["spec"]["rules"]
    fields = Settings.model_fields
    longest = fields["upload_timeout_seconds"].default + fields["max_timeout_seconds"].default
    assert int(rule["timeouts"]["request"].removesuffix("s")) > longest


def test_fetched_models_are_in_the_model_repository(releases):
    claim = container(releases["models from a claim"], "triton")
    assert "--model-repository=/models" in claim["args"], "the image for processors has them elsewhere"
    assert {"name": "models", "mountPath": "/models", "readOnly": True, "subPath": "production"} in claim[
        "volumeMounts"
    ]
    assert "args" not in container(releases["models from a bucket"], "triton"), "the image for GPUs has them there"
    (fetch,) = pod(releases["models from a bucket with a secret"], "triton")["initContainers"]
    sources = {each["name"]: each.get("valueFrom") for each in fetch["env"]}
    assert sources["MODELS_URL"]["secretKeyRef"] == {"name": "m", "key": "url"}
    assert "fetch.py" in find(releases["models from a bucket"], "ConfigMap", "-triton-scripts")["data"]


def test_notes_have_a_working_command(releases):
    assert "curl -F files=@cat.jpg http://127.0.0.1:8080/predict" in releases["as it comes"].files["NOTES.txt"]
    assert "port-forward service/images-gateway 8080:80" in releases["as it comes"].files["NOTES.txt"]
    assert "https://vision.example.com/predict" in releases["an Ingress"].files["NOTES.txt"]
    assert "https://vision.example.com/predict" in releases["an HTTPRoute"].files["NOTES.txt"]
    assert "-H 'X-API-Key: YOUR KEY'" in releases["keys"].files["NOTES.txt"]
    assert "WARNING" in releases["no policies and no budgets"].files["NOTES.txt"]


def test_runbook_links_lead_to_the_documents(releases):
    (group,) = find(releases["monitoring"], "PrometheusRule", "-gateway")["spec"]["groups"]
    urls = [rule["annotations"]["runbook_url"] for rule in group["rules"]]
    assert urls
    assert all(url.startswith("https://git.example/tig/blob/main/docs/guides/alerts.md#") for url in urls)


def test_dashboards_are_config_maps_with_the_sidecars_label(releases):
    maps = [each for each in releases["monitoring"].documents if "-dashboard-" in each["metadata"]["name"]]
    assert len(maps) == len([*(CHART / "files" / "dashboards").glob("*.json")]) > 0
    assert all(each["metadata"]["labels"]["grafana_dashboard"] == "1" for each in maps)


REDIS = {"redis": {"host": "redis"}}
WRONG = [
    ({"profile": "cpu", "triton": REDIS, "gateway": {"cacheSecret": {"secretName": "s"}}}, "no Redis cache"),
    ({"triton": REDIS}, "gateway.cacheSecret.secretName"),
    ({"triton": {**REDIS, "args": ["tritonserver"]}, "gateway": {"cacheSecret": {"secretName": "s"}}}, "triton.args"),
    ({"triton": {"redis": {"port": 0}}}, "redis/port"),
    ({"gateway": {"replicas": "two"}}, "/gateway/replicas"),
    ({"gateway": {"replica": 2}}, "'replica'"),
    ({"profile": "tpu"}, "/profile"),
    ({"gateway": {"settings": {"GATEWAY_MAX_WAITING": 3}}}, "'GATEWAY_MAX_WAITING'"),
    ({"gateway": {"settings": {"GATEWAY_WORKERS": 0}}}, "/gateway/settings/GATEWAY_WORKERS"),
    ({"gateway": {"settings": {"GATEWAY_TRITON_URL": "elsewhere:8001"}}}, "'GATEWAY_TRITON_URL'"),
    ({"gateway": {"podSecurityContext": {"runAsUsr": 1}}}, "'runAsUsr'"),
    ({"triton": {"containerSecurityContext": {"capabilities": {"drops": []}}}}, "'drops'"),
    ({"gateway": {"serviceAccount": {"annotation": {}}}}, "'annotation'"),
    ({"gateway": {"image": {"digest": "sha256:abc"}}}, "/gateway/image/digest"),
    ({"gateway": {"service": {"nodePort": 30080}}}, "gateway.service.nodePort"),
    ({"gateway": {"service": {"type": "NodePort", "nodePort": 65536}}}, "/gateway/service/nodePort"),
    ({"gateway": {"extraVolumeMounts": [{"name": "a"}]}}, "mountPath"),
    ({"gateway": {"tritonUrl": "http://triton:8001"}}, "/gateway/tritonUrl"),
    ({"gateway": {"tritonUrl": "e:1", "settings": {"GATEWAY_HEAL": True}}}, "gateway.settings.GATEWAY_HEAL"),
    ({"gateway": {"tritonUrl": "e:1", "adminKeys": {"secretName": "a"}}}, "gateway.adminKeys.secretName"),
    ({"triton": {"tls": {"clientSecretName": "a"}}}, "triton.tls.secretName"),
    ({"triton": {"autoscaling": {"by": "vpa"}}}, "/triton/autoscaling/by"),
    ({"triton": {"autoscaling": {"fallback": {"replica": 2}}}}, "'replica'"),
    (
        {
            "triton": {"autoscaling": {"enabled": True, "by": "hpa", "scaleToZero": True}},
            "gateway": {"settings": {"GATEWAY_MAX_WAIT_SECONDS": 60, "GATEWAY_DEFAULT_TIMEOUT_SECONDS": 60}},
        },
        "triton.autoscaling.scaleToZero",
    ),
    ({"triton": {"models": {"source": "s3"}}}, "/triton/models/source"),
    ({"triton": {"models": {"source": "pvc"}}}, "triton.models.pvc.claimName"),
    ({"triton": {"models": {"source": "bucket", "bucket": {"url": "https://b"}}}}, "triton.models.bucket.sha256"),
    ({"triton": {"models": {"source": "bucket", "bucket": {"sha256": SHA256}}}}, "triton.models.bucket.url"),
    (
        {"profile": "cpu", "triton": {"models": {"source": "bucket", "bucket": {"url": "s3://b/m", "native": True}}}},
        "triton.models.bucket.native",
    ),
    ({"triton": {"models": {"bucket": {"url": "ftp://b/m"}}}}, "/triton/models/bucket/url"),
    ({"triton": {"models": {"bucket": {"sha256": "abc"}}}}, "/triton/models/bucket/sha256"),
    ({"triton": {"strategy": {"maxSurge": 0}}}, "triton.strategy"),
    ({"triton": {"autoscaling": {"enabled": True, "minReplicas": 0}}}, "triton.autoscaling.minReplicas"),
    ({"triton": {"autoscaling": {"targetFullness": 3}}}, "/triton/autoscaling/targetFullness"),
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


def test_redis_replaces_the_cache_and_no_other_option(releases, dockerfile):
    release = releases["answers shared in Redis"]
    triton = container(release, "triton")
    cache = [option for option in triton["args"] if option.startswith("--cache-config=")]
    assert [option for option in triton["args"] if option not in cache] == [
        option for option in dockerfile.stages["triton"].words("CMD") if not option.startswith("--cache-config=")
    ]
    assert {"--cache-config=redis,host=redis.cache.svc", "--cache-config=redis,port=6380"} <= set(cache)
    password = {"secretKeyRef": {"name": "redis", "key": "password"}}
    assert {"name": "TRITONCACHE_REDIS_PASSWORD", "valueFrom": password} in triton["env"]
    assert {"name": "NVIDIA_TF32_OVERRIDE", "value": "0"} in triton["env"]
    (egress,) = find(release, "NetworkPolicy", "-triton")["spec"]["egress"]
    assert {"port": 6380} in egress["ports"]
    assert {"port": 443} not in egress["ports"]


def test_waits_for_redis_are_those_of_the_compose_file(releases):
    compose = compose_file("docker-compose.redis.yml")["services"]["triton"]["command"]
    limits = {option for option in compose if option.rpartition("=")[0].endswith(("timeout", "pool_size"))}
    assert len(limits) == 4
    assert limits <= set(container(releases["answers shared in Redis"], "triton")["args"])


def test_engines_of_tensorrt_are_kept_in_a_claim(releases):
    release = releases["answers shared in Redis"]
    mounts = {each["name"]: each["mountPath"] for each in container(release, "triton")["volumeMounts"]}
    assert mounts["tensorrt"] == TENSORRT_CACHE
    claims = {
        each["name"]: each["persistentVolumeClaim"]
        for each in pod(release, "triton")["volumes"]
        if "persist" in str(each)
    }
    assert claims["tensorrt"] == {"claimName": "engines"}
    assert "tensorrt" not in str(container(releases["as it comes"], "triton")["volumeMounts"])
