"""Promises of the compose files, read from their text: no engine is needed."""

import pytest
import yaml

from gateway.machine.capacity import plan
from gateway_local.server import EXIT_TIMEOUT_SECONDS
from tests.deploy.conftest import compose_file, faults_of, laid_over
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
    """The services of a profile; without a profile, the services that always start."""
    wanted = [profile] if profile else []
    return {name: each for name, each in compose["services"].items() if each.get("profiles", []) == wanted}


def test_only_the_gateway_can_be_reached_from_outside_and_monitoring_starts_with_its_profile(compose):
    assert set(services_of(compose, None)) == {"gateway", "triton"}
    assert set(services_of(compose, "monitoring")) == {"prometheus", "grafana"}
    services = compose["services"]
    assert set(services["gateway"]["networks"]) >= set(services["triton"]["networks"])
    for service in (services["triton"], *services_of(compose, "monitoring").values()):
        assert all(str(port).startswith("127.0.0.1:") for port in service.get("ports", []))


def test_gateway_is_published_for_this_machine_by_default(gpu_compose):
    assert gpu_compose["services"]["gateway"]["ports"] == ["${PUBLISH:-127.0.0.1}:${GATEWAY_PORT:-8080}:8080"]


def test_a_service_may_finish_its_requests_before_it_is_killed(compose):
    given = {name: service.get("stop_grace_period", "") for name, service in compose["services"].items()}
    assert int(given["gateway"].removesuffix("s")) > Settings.model_fields["shutdown_grace_seconds"].default
    assert int(given["triton"].removesuffix("s")) > EXIT_TIMEOUT_SECONDS


def test_gateway_gets_settings_and_computes_what_env_leaves_out(gpu_compose, cpu_compose):
    for kind, each in {"gpu": gpu_compose, "cpu": cpu_compose}.items():
        environment = each["services"]["gateway"]["environment"]
        assert set(environment) <= {f"GATEWAY_{field.upper()}" for field in Settings.variables()}
        assert environment["GATEWAY_BESIDE_TRITON"] == kind
        # `environment` would win over .env.
        assert not {f"GATEWAY_{field.upper()}" for field in plan(16, 1).settings()} & environment.keys()


@pytest.fixture
def redis_compose(gpu_compose):
    return laid_over(gpu_compose, compose_file("docker-compose.redis.yml"))
