"""The schema of the chart's values, from values.yaml and gateway/settings.py."""

import json
import re
from typing import Any

import yaml

from deploy.generate import CHART
from gateway.plugin_loading import settings_class
from gateway.settings import is_secret, variable

Schema = dict[str, Any]

_TRITON = {"triton_url", "triton_ca_file", "triton_certificate_file", "triton_key_file", "triton_server_name"}
Settings = settings_class()
OWN = frozenset({"triton_alone", "host", "port", "log_format", "api_keys_file", "admin_keys_file", *_TRITON}) | {
    field for field in Settings.model_fields if is_secret(Settings, field)
}
"""Settings that the chart makes itself, or takes from a Secret."""
TEXT: Schema = {"type": "string"}
MAP: Schema = {"type": "object"}
COUNT: Schema = {"type": "integer", "minimum": 1}
SECONDS: Schema = {"type": "integer", "minimum": 0}
SHARE: Schema = {"type": ["integer", "string"], "minimum": 0, "pattern": "^[0-9]+%$"}
"""A number of pods, or a percentage."""
QUANTITY: Schema = {"type": "string", "pattern": "^[0-9]+(\\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$"}
DURATION: Schema = {"type": "string", "pattern": "^([0-9]+(ms|s|m|h))+$"}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65_535}
SPREAD: Schema = {"enum": ["ScheduleAnyway", "DoNotSchedule"]}
PULL: Schema = {"enum": ["Always", "IfNotPresent", "Never"]}


def _closed(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    """A map with these names and no others."""
    schema: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return schema | ({"required": [*required]} if required else {})


ACCESS_MODES: Schema = {
    "type": "array",
    "minItems": 1,
    "items": {"enum": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"]},
}

RULES: dict[str, Schema] = {
    "profile": {"enum": ["gpu", "cpu"]},
    "profiles.*.tritonResources": MAP,
    "*.replicas": {"type": "integer", "minimum": 0},
    "*.image.pullPolicy": PULL,
    "*.image.digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})?$"},
    "*.podSecurityContext": MAP,
    "*.containerSecurityContext": MAP,
    "nameOverride": {"type": "string", "maxLength": 63},
    "*.resources": MAP,
    "*.strategy.*": SHARE,
    "*.pdb.maxUnavailable": SHARE,
    "*.pdb.minAvailable": {**SHARE, "type": [*SHARE["type"], "null"]},
    "*.revisionHistoryLimit": {"type": "integer", "minimum": 0},
    "*.service.ipFamilyPolicy": {"enum": ["SingleStack", "PreferDualStack", "RequireDualStack", ""]},
    "*.probes.readiness": MAP,
    "*.probes.liveness": MAP,
    "triton.*.size": QUANTITY,
    "triton.models.pvc.size": QUANTITY,
    "triton.tensorrtCache.accessModes": ACCESS_MODES,
    "triton.models.pvc.accessModes": ACCESS_MODES,
    "*.topologySpread.whenUnsatisfiable": SPREAD,
    "gateway.service.type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    "gateway.service.port": PORT,
    "gateway.service.nodePort": {"type": "integer", "minimum": 0, "maximum": 65_535},
    "gateway.service.externalTrafficPolicy": {"enum": ["Cluster", "Local", ""]},
    "gateway.tritonUrl": {"type": "string", "pattern": "^([^/,:\\[\\]]+|\\[[0-9a-fA-F:.]+\\]):[0-9]+$|^$"},
    "gateway.autoscaling.targetCPUUtilizationPercentage": {"type": "integer", "minimum": 1, "maximum": 100},
    "gateway.autoscaling.*Replicas": COUNT,
    "triton.autoscaling.minReplicas": {"type": "integer", "minimum": 0},
    "triton.autoscaling.maxReplicas": COUNT,
    "triton.autoscaling.by": {"enum": ["keda", "hpa"]},
    "triton.autoscaling.imagesPerTriton": {"type": "integer", "minimum": 0},
    "triton.autoscaling.authenticationRef": _closed(
        name=TEXT, kind={"enum": ["TriggerAuthentication", "ClusterTriggerAuthentication"]}
    ),
    "triton.autoscaling.fallback": _closed(
        failureThreshold=COUNT,
        replicas=COUNT,
        behavior={"enum": ["static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower"]},
    ),
    "triton.autoscaling.targetFullness": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "triton.autoscaling.window": DURATION,
    "triton.autoscaling.prometheusAddress": {"type": "string", "pattern": "^https?://"},
    "triton.models.source": {"enum": ["image", "pvc", "bucket"]},
    "triton.models.bucket.url": {"type": "string", "pattern": "^((s3|gs|as)://.+)?$"},
    "triton.models.bucket.sizeLimit": QUANTITY,
    "triton.sharedMemory": {**QUANTITY, "pattern": f"{QUANTITY['pattern']}|^$"},
    "triton.redis.port": PORT,
    "triton.probes.livenessTimeoutSeconds": {"type": "integer", "minimum": 3},
    "triton.probes.model": TEXT,
    "triton.probes.*": COUNT,
    "ingress.preset": {"enum": ["ingress-nginx", "nginx-inc", ""]},
    "ingress.paths": {
        "type": "array",
        "minItems": 1,
        "items": _closed(
            ("path",),
            path={"type": "string", "pattern": "^/"},
            pathType={"enum": ["Exact", "Prefix", "ImplementationSpecific"]},
        ),
    },
    "httpRoute.requestTimeout": {"type": "string", "pattern": "^(([0-9]+(ms|s|m|h))+)?$"},
    "monitoring.serviceMonitor.interval": DURATION,
    "monitoring.dashboards.labels": {**MAP, "additionalProperties": TEXT},
}
"""Schemas that cannot be derived from values.yaml; the first match counts. `*` matches a name without a dot.

Lists, and maps that are empty there, may have any content: Kubernetes checks it."""


def schema() -> str:
    """values.schema.json: it lists every name of the chart, so that a misspelt one is refused.

    Kubernetes checks the fields of its objects, and the gateway checks its variables when it starts.
    """
    settings = {
        "type": "object",
        "propertyNames": {"enum": sorted(variable(field) for field in Settings.variables() if field not in OWN)},
        "additionalProperties": {"type": ["string", "number", "boolean"]},
    }
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    document = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"settings": settings},
        **_schema("", defaults),
    }
    document["properties"]["global"] = MAP  # Helm passes it to every chart
    return json.dumps(document, indent=1) + "\n"


def _schema(path: str, value: object) -> Schema:
    if path.endswith(".settings"):
        return {"$ref": "#/definitions/settings"}
    for pattern, rule in RULES.items():
        if re.fullmatch(re.escape(pattern).replace(r"\*", r"[^.]*"), path):
            return rule
    if value == {}:
        is_text = path.lower().endswith(("labels", "annotations", "nodeselector", "triggermetadata"))
        return {**MAP, "additionalProperties": TEXT} if is_text else MAP
    if isinstance(value, list):
        return {"type": "array"}
    if isinstance(value, dict):
        prefix = f"{path}." if path else ""
        properties = {name: _schema(f"{prefix}{name}", each) for name, each in value.items()}
        return {"type": "object", "additionalProperties": False, "properties": properties}
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, int) and path.endswith("Seconds"):
        return SECONDS
    if isinstance(value, str):
        return TEXT
    raise ValueError(f"values.yaml: {path} needs a line in RULES of deploy/generate/values.py")
