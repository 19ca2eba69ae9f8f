"""What the compose files promise, read from their text: no engine is needed."""

import re

import pytest
import yaml

from gateway_local.server import EXIT_TIMEOUT_SECONDS
from gateway_machine.capacity import MAX_INSTANCES, SHARED_BYTES, plan
from tests.deploy.conftest import compose_file, faults_of, laid_over
from tests.deploy.kubernetes_schemas import at
from tests.processes import PROJECT
from tests.settings import Settings


@pytest.fixture(params=["gpu", "cpu"])
def compose(request):
    return request.getfixturevalue(f"{request.param}_compose")


@pytest.mark.parametrize("compose", ["gpu", "cpu", "redis"], indirect=True)
def test_the_file_follows_the_compose_specification(compose, tmp_path):
    document = tmp_path / "docker-compose.yml"
    document.write_text(yaml.safe_dump(compose))
    assert faults_of("compose-spec", document) == ""


def services_of(compose, profile: str | None) -> dict:
    """The services of a profile; without a profile, those that always start."""
    wanted = [profile] if profile else []
    return {name: each for name, each in compose["services"].items() if each.get("profiles", []) == wanted}


def target_of(service) -> str:
    return re.sub(r"^\$\{\w+:-(.*)\}$", r"\1", service["build"]["target"])


def test_every_service_is_built_by_the_dockerfile(compose, dockerfile):
    for service in services_of(compose, None).values():
        assert target_of(service) in dockerfile.stages
        defaults = {name: re.sub(r"^\$\{\w+:-(.*)\}$", r"\1", text) for name, text in service["build"]["args"].items()}
        assert (
            defaults.items()
            >= {name: dockerfile.arguments[name] for name in defaults.keys() & dockerfile.arguments}.items()
        )
    (default,) = [text for text in dockerfile.stages["gateway-build"].all("ARG") if text.startswith("EXTRAS=")]
    wanted = f"${{EXTRAS:-{default.removeprefix('EXTRAS=')}}}"
    assert compose["services"]["gateway"]["build"]["args"]["EXTRAS"] == wanted


def test_cpu_file_uses_another_image_and_requests_no_gpu(gpu_compose, cpu_compose):
    gpu, cpu = (compose["services"]["triton"] for compose in (gpu_compose, cpu_compose))
    assert gpu["build"]["target"] == "triton"
    (device,) = gpu["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    assert target_of(cpu) == "triton-cpu"
    assert gpu["environment"]["DEVICES"] == "${DEVICES:-all}"
    assert cpu["environment"]["DEVICES"] == "none"
    assert not {"deploy", "volumes"} & set(cpu)


VALUES = {
    "services gateway ports": ["${GATEWAY_PORT:-8080}:8080"],
    "services gateway depends_on triton condition": "service_healthy",
    "services gateway environment GATEWAY_TRITON_URL": "triton:8001",
    "services triton networks": ["triton"],
    "services triton shm_size": f"{2 * MAX_INSTANCES * SHARED_BYTES >> 30}gb",
    "networks triton internal": True,
}
for _service in ("gateway", "triton", "prometheus", "grafana"):
    VALUES[f"services {_service} restart"] = "unless-stopped"
    VALUES[f"services {_service} cap_drop"] = ["ALL"]
    VALUES[f"services {_service} security_opt"] = ["no-new-privileges:true"]
    VALUES[f"services {_service} privileged"] = None


@pytest.mark.parametrize(("path", "value"), VALUES.items(), ids=VALUES)
def test_file_has_its_values(compose, path, value):
    assert at(compose, path) == value


def test_only_the_gateway_can_be_reached_from_outside_and_monitoring_starts_with_its_profile(compose):
    assert set(services_of(compose, None)) == {"gateway", "triton"}
    assert set(services_of(compose, "monitoring")) == {"prometheus", "grafana"}
    services = compose["services"]
    assert set(services["gateway"]["networks"]) >= set(services["triton"]["networks"])
    for service in (services["triton"], *services_of(compose, "monitoring").values()):
        assert all(str(port).startswith("127.0.0.1:") for port in service.get("ports", []))


def test_triton_is_healthy_by_the_check_of_its_image_and_the_gateway_when_it_classifies(compose, dockerfile):
    service = compose["services"]["triton"]
    stage = dockerfile.stages[target_of(service)]
    assert service["healthcheck"]["test"] == ["CMD", *stage.words("HEALTHCHECK")]
    for option in ("interval", "timeout", "start_period", "retries"):
        assert f"--{option.replace('_', '-')}={service['healthcheck'][option]}" in stage.last("HEALTHCHECK").split()
    *_, code = compose["services"]["gateway"]["healthcheck"]["test"]
    assert "http://127.0.0.1:8080/health/ready" in code


def test_a_service_may_finish_its_requests_before_it_is_killed(compose):
    given = {name: service.get("stop_grace_period", "") for name, service in compose["services"].items()}
    assert int(given["gateway"].removesuffix("s")) > Settings.model_fields["shutdown_grace_seconds"].default
    assert int(given["triton"].removesuffix("s")) > EXIT_TIMEOUT_SECONDS


def mounted(compose, service: str) -> dict[str, str]:
    """Where each file or folder of this repository is found in the container."""
    volumes = (volume.split(":") for volume in compose["services"][service]["volumes"])
    return {inside: outside for outside, inside, *_ in volumes if outside.startswith("./")}


def test_prometheus_scrapes_both_services_and_reads_the_alerts(compose):
    files = mounted(compose, "prometheus")
    configuration = yaml.safe_load((PROJECT / files["/etc/prometheus/prometheus.yml"]).read_text())
    (rules,) = configuration["rule_files"]
    assert yaml.safe_load((PROJECT / files[rules]).read_text())["groups"]
    found = {
        job["job_name"]: (names["names"], names["port"])
        for job in configuration["scrape_configs"]
        for names in job["dns_sd_configs"]
    }
    assert found == {"gateway": (["gateway"], 8080), "triton": (["triton"], 8002)}
    for service in found:
        assert set(compose["services"]["prometheus"]["networks"]) & set(compose["services"][service]["networks"])


def test_grafana_finds_prometheus_and_the_dashboards(compose):
    files = mounted(compose, "grafana")
    assert all((PROJECT / outside).exists() for outside in files.values())
    folder = "/etc/grafana/provisioning"
    (source,) = yaml.safe_load((PROJECT / files[f"{folder}/datasources/prometheus.yml"]).read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((PROJECT / files[f"{folder}/dashboards/image-gateway.yml"]).read_text())["providers"]
    home = compose["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    dashboards = PROJECT / files[provider["options"]["path"]]
    assert (dashboards / home.rpartition("/")[2]).exists()
    assert home.startswith(provider["options"]["path"])


def test_own_images_run_on_a_read_only_file_system(gpu_compose, cpu_compose):
    for service in (gpu_compose["services"]["gateway"], *cpu_compose["services"].values()):
        assert service["read_only"] is True
        assert service["tmpfs"] == ["/tmp"]  # noqa: S108  # a path inside the container


def test_gateway_gets_settings_and_computes_what_env_leaves_out(gpu_compose, cpu_compose):
    for kind, each in {"gpu": gpu_compose, "cpu": cpu_compose}.items():
        environment = each["services"]["gateway"]["environment"]
        assert set(environment) <= {f"GATEWAY_{field.upper()}" for field in Settings.model_fields}
        assert environment["GATEWAY_BESIDE_TRITON"] == kind
        # `environment` would win over .env.
        assert not {f"GATEWAY_{field.upper()}" for field in plan(16, 1).settings()} & environment.keys()


@pytest.fixture
def redis_compose(gpu_compose):
    return laid_over(gpu_compose, compose_file("docker-compose.redis.yml"))


def test_redis_replaces_the_cache_and_no_other_option(redis_compose, dockerfile):
    """Only Triton reaches the Redis, which stores nothing on disk; the gateways share one secret."""
    command = redis_compose["services"]["triton"]["command"]
    cache = [option for option in command if option.startswith("--cache-config=")]
    assert [option for option in command if option not in cache] == [
        option for option in dockerfile.stages["triton"].words("CMD") if not option.startswith("--cache-config=")
    ]
    given = dict(option.removeprefix("--cache-config=redis,").split("=") for option in cache)
    assert (given["host"], given["port"]) == ("redis", "6379")
    # 0, the default of the first two, is to wait for ever.
    assert all(0 < int(given[name]) <= 100 for name in ("connect_timeout", "socket_timeout", "wait_timeout"))
    redis = redis_compose["services"]["redis"]
    assert redis["networks"] == ["triton"]
    assert "ports" not in redis
    assert redis["command"][-2:] == ["--maxmemory-policy", "allkeys-lru"]
    assert (redis["cap_drop"], redis["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
    assert redis_compose["services"]["triton"]["depends_on"]["redis"]["condition"] == "service_healthy"
    secret = redis_compose["services"]["gateway"]["environment"]["GATEWAY_CACHE_SECRET"]
    assert secret.startswith("${GATEWAY_CACHE_SECRET:?")
