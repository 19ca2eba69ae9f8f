"""Each alert fires when it should, and does not when it should not, as promtool sees it."""

from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.deploy.prometheus import ALERTS, needs_prometheus, promtool
from tests.processes import PROJECT

RULES = {rule["alert"]: rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]}


@dataclass(frozen=True)
class Case:
    """Series by minutes that make an alert fire, and others that are nearly as bad."""

    alert: str
    fires: dict[str, str]
    silent: dict[str, str]
    after_minutes: int = 30


def requests(status: str, per_minute: int, code: str = "") -> dict[str, str]:
    name = f'gateway_requests_total{{route="/predict", status="{status}", code="{code}"}}'
    return {name: f"0+{per_minute}x90"}


def images(outcome: str, per_minute: int) -> dict[str, str]:
    return {f'gateway_images_total{{outcome="{outcome}"}}': f"0+{per_minute}x90"}


def constant(**values: float) -> dict[str, str]:
    return {name: f"{value}x90" for name, value in values.items()}


def calls(fast: int, slow: int) -> dict[str, str]:
    """Calls to Triton a minute that take under 2.5 s, and between 5 and 10."""
    name = "gateway_triton_call_duration_seconds_bucket"
    return {
        f'{name}{{le="2.5"}}': f"0+{fast}x90",
        f'{name}{{le="5"}}': f"0+{fast}x90",
        f'{name}{{le="10"}}': f"0+{fast + slow}x90",
        f'{name}{{le="+Inf"}}': f"0+{fast + slow}x90",
        "gateway_triton_call_duration_seconds_count": f"0+{fast + slow}x90",
    }


def by(metric: str, label: str, values: dict[str, str]) -> dict[str, str]:
    """The series of a metric by the values of one label."""
    return {f'{metric}{{{label}="{name}"}}': each for name, each in values.items()}


TRITON, MODEL = ("gateway_triton_ready", "triton"), ("gateway_model_ready", "model")
STORE, HEALED = ("gateway_rate_store_up", "instance"), ("gateway_healings_total", "outcome")
LOGGED, MISSING = (
    ("gateway_prediction_log_rows_total", "outcome"),
    ("gateway_model_missing", 'triton="triton:8001",model'),
)


def shadow(**per_minute: int) -> dict[str, str]:
    name = 'gateway_shadow_images_total{{outcome="{}", model="flowers", version="2"}}'
    return {name.format(outcome): f"0+{count}x90" for outcome, count in per_minute.items()}


def drift(per_minute: dict[str, int], shares: dict[str, float], model: str = "flowers") -> dict[str, str]:
    """Answers by class, and the shares of a reference."""

    def name(metric: str, label: str) -> str:
        return f'{metric}{{model="{model}", version="1", property="class", bin="{label}"}}'

    counted = {name("gateway_drift_images_total", each): f"0+{number}x90" for each, number in per_minute.items()}
    return counted | {name("gateway_drift_reference_share", each): f"{share}x90" for each, share in shares.items()}


CASES = [
    Case("GatewayAbsent", {}, constant(gateway_build_info=1)),
    Case("GatewayNoTritonReady", by(*TRITON, {"a": "0x90", "b": "0x90"}), by(*TRITON, {"a": "0x90", "b": "1x90"})),
    Case("GatewayTritonNotReady", by(*TRITON, {"a": "0x90", "b": "1x90"}), by(*TRITON, {"a": "1x27 0x3", "b": "1x90"})),
    Case(
        "GatewayRequestsFail",
        requests("200", 95) | requests("502", 5, "inference_failed"),
        requests("200", 500) | requests("502", 1, "inference_failed") | requests("503", 50, "overloaded"),
    ),
    Case(
        "GatewayImagesFail",
        images("ok", 95) | images("model_unavailable", 5),
        images("ok", 500) | images("model_unavailable", 1) | images("truncated_image", 100),
    ),
    Case(
        "GatewayUnexpectedError",
        {'gateway_requests_total{code="internal_error"}': "0x25 1x60"},
        {'gateway_requests_total{code="internal_error"}': "3x90"},
    ),
    Case(
        "GatewayOverloaded",
        requests("200", 80) | requests("503", 20, "overloaded"),
        requests("200", 98) | requests("503", 2, "overloaded"),
    ),
    Case(
        "GatewayFull",
        constant(gateway_images_in_flight=32, gateway_images_waiting=5, gateway_images_in_flight_limit=32),
        constant(gateway_images_in_flight=32, gateway_images_waiting=0, gateway_images_in_flight_limit=32),
    ),
    Case(
        "GatewayUploadsFillMemory",
        constant(gateway_waiting_bytes=90, gateway_waiting_limit_bytes=100),
        constant(gateway_waiting_bytes=70, gateway_waiting_limit_bytes=100),
    ),
    Case(
        "GatewayLoopPauses",
        constant(gateway_event_loop_pause_seconds=0.2),
        {"gateway_event_loop_pause_seconds": "0.01x28 0.2x60"},
    ),
    Case("GatewayTritonSlow", calls(90, 10), calls(99, 1)),
    Case(
        "GatewayGpuIdle",
        images("ok", 1200) | {'nv_gpu_utilization{gpu_uuid="a"}': "0x90", 'nv_gpu_utilization{gpu_uuid="b"}': "0x90"},
        images("ok", 1200)
        | {'nv_gpu_utilization{gpu_uuid="a"}': "0x90", 'nv_gpu_utilization{gpu_uuid="b"}': "0x20 0.1x70"},
    ),
    Case(
        "GatewayConnectionsLost",
        calls(100, 0) | {"gateway_retries_total": "0+10x90"},
        calls(100, 0) | {"gateway_retries_total": "0+2x90"},
    ),
    Case("GatewayRateStoreLost", by(*STORE, {"a": "1x90", "b": "0x90"}), by(*STORE, {"a": "1x90", "b": "0x27 1x60"})),
    Case(
        "GatewayHealingFails",
        by(*HEALED, {"failed": "0x25 1x60"}),
        by(*HEALED, {"failed": "2x90", "healed": "0+1x90"}),
    ),
    Case("GatewayHealingInVain", by(*HEALED, {"in vain": "0x25 1x60"}), by(*HEALED, {"in vain": "2x90"})),
    Case("GatewayModelNotReady", by(*MODEL, {"a": "0x90", "b": "1x90"}), by(*MODEL, {"a": "1x27 0x3", "b": "1x90"})),
    Case("GatewayModelMissing", by(*MISSING, {"flowers": "0x10 1x80"}), by(*MISSING, {"flowers": "0x20 1x4 0x66"})),
    Case("GatewayHealsAgainAndAgain", by(*HEALED, {"healed": "0+1x90"}), by(*HEALED, {"healed": "0x20 1x10 2x60"}), 60),
    Case("GatewayWatchFaults", {"gateway_watch_faults_total": "0x25 1x60"}, {"gateway_watch_faults_total": "4x90"}),
    Case(
        "GatewayNameLookupsFail", {"gateway_dns_failures_total": "0+1x90"}, {"gateway_dns_failures_total": "0x24 1x60"}
    ),
    Case(
        "GatewayStreamsDisplaced",
        {'gateway_streams_stopped_total{reason="displaced"}': "0+1x90"},
        {'gateway_streams_stopped_total{reason="idle"}': "0+9x90"},
        60,
    ),
    Case(
        "GatewayClientsLeave",
        requests("200", 80) | {"gateway_client_disconnects_total": "0+20x90"},
        requests("200", 98) | {"gateway_client_disconnects_total": "0+2x90"},
        60,
    ),
    Case(
        "GatewayBadImages",
        images("ok", 20) | images("invalid_image", 80),
        images("ok", 80) | images("invalid_image", 20) | images("rate_limited", 400),
        80,
    ),
    Case(
        "GatewayShadowFails",
        shadow(same=20, model_unavailable=50, deadline_exceeded=30),
        shadow(same=60, different=30, deadline_exceeded=10, skipped=500),
        60,
    ),
    Case(
        "GatewayPredictionsNotLogged",
        by(*LOGGED, {"written": "0+100x90", "queue_full": "0+1x90"}),
        by(*LOGGED, {"written": "0+100x90", "queue_full": "0+0x90"}),
    ),
    Case(
        "GatewayAnswersDrift",
        drift({"cat": 90, "dog": 10, "lion": 0}, {"cat": 0.1, "dog": 0.9, "lion": 0}),
        drift({"cat": 90, "dog": 10, "lion": 0}, {"cat": 0.85, "dog": 0.15, "lion": 0})
        # Few images, and classes that the reference no longer has.
        | drift({"cat": 5, "dog": 0}, {"cat": 0.1, "dog": 0.9}, "rare")
        | drift({"cat": 90, "wolf": 10}, {"cat": 0.85, "wolf": 0}, "replaced"),
        80,
    ),
    Case(
        "GatewayVersionsDiffer",
        {'gateway_build_info{version="1"}': "1x90", 'gateway_build_info{version="2"}': "1x90"},
        {'gateway_build_info{version="1"}': "1x40", 'gateway_build_info{version="2"}': "_x30 1x60"},
        80,
    ),
]


def test_every_alert_has_a_case():
    assert [case.alert for case in CASES] == list(RULES)


@needs_prometheus
def test_promtool_accepts_the_rules_and_the_configuration_of_compose():
    assert f"{len(RULES)} rules found" in promtool("check", "rules", str(ALERTS))
    promtool("check", "config", "--syntax-only", str(PROJECT / "deploy/monitoring/prometheus.yml"))


def group(case: Case, series: dict[str, str], *, fires: bool) -> dict[str, object]:
    """A test of promtool's: whether the alert fires after the minutes of the case."""
    expression = f'count(ALERTS{{alertname="{case.alert}", alertstate="firing"}}) > bool 0'
    return {
        "name": f"{case.alert} {'fires' if fires else 'is silent'}",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": expression,
                "eval_time": f"{case.after_minutes}m",
                "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
            }
        ],
    }


def file_of(folder: Path, case: Case) -> str:
    """Write a file of promtool tests with a single alert: promtool would evaluate all alerts for each test."""
    rules, tests = folder / f"{case.alert}.yml", folder / f"{case.alert}-tests.yml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": [RULES[case.alert]]}]}))
    both = [group(case, case.fires, fires=True), group(case, case.silent, fires=False)]
    tests.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": both}))
    return str(tests)


@needs_prometheus
def test_each_alert_fires_only_for_its_fault(tmp_path):
    """One run of promtool checks all cases, and names the failing ones."""
    promtool("test", "rules", *(file_of(tmp_path, case) for case in CASES))
