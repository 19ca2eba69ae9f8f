"""The chart's values: their schema, and the table of its README, both from values.yaml and gateway/settings.py."""

import json
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

import yaml

from deploy.generate import CHART
from gateway.plugins import settings_class
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
MAP_OF_TEXT: Schema = {"type": "object", "additionalProperties": TEXT}
LIST_OF_MAPS: Schema = {"type": "array", "items": MAP}
COUNT: Schema = {"type": "integer", "minimum": 1}
SECONDS: Schema = {"type": "integer", "minimum": 0}
SHARE: Schema = {"type": ["integer", "string"], "minimum": 0, "pattern": "^[0-9]+%$"}
"""A number of pods, or a percentage."""
QUANTITY: Schema = {"type": "string", "pattern": "^[0-9]+(\\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$"}
DURATION: Schema = {"type": "string", "pattern": "^([0-9]+(ms|s|m|h))+$"}
NAMED: Schema = {"type": "array", "items": {"type": "object", "required": ["name"]}}
"""A list of containers, volumes or mounts."""
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65_535}
SPREAD: Schema = {"enum": ["ScheduleAnyway", "DoNotSchedule"]}
PULL: Schema = {"enum": ["Always", "IfNotPresent", "Never"]}


def _closed(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    """A map with these names and no others."""
    schema: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return schema | ({"required": [*required]} if required else {})


def _or_null(schema: Schema) -> Schema:
    """Null removes a default."""
    return {**schema, "type": [schema["type"], "null"]}


ID: Schema = _or_null({"type": "integer", "minimum": 0})
FLAG: Schema = _or_null({"type": "boolean"})
NULLABLE: Schema = _or_null(MAP)
IN_BOTH: dict[str, Schema] = {
    "runAsUser": ID,
    "runAsGroup": ID,
    "runAsNonRoot": FLAG,
    "seccompProfile": NULLABLE,
    "appArmorProfile": NULLABLE,
    "seLinuxOptions": NULLABLE,
    "windowsOptions": NULLABLE,
}
"""Fields of the security context of pods and of containers."""
POD_CONTEXT = _closed(
    **IN_BOTH,
    fsGroup=ID,
    fsGroupChangePolicy={"enum": ["Always", "OnRootMismatch", None]},
    supplementalGroups=_or_null({"type": "array", "items": {"type": "integer", "minimum": 0}}),
    supplementalGroupsPolicy={"enum": ["Merge", "Strict", None]},
    sysctls=_or_null(NAMED),
)
CONTAINER_CONTEXT = _closed(
    **IN_BOTH,
    allowPrivilegeEscalation=FLAG,
    privileged=FLAG,
    readOnlyRootFilesystem=FLAG,
    capabilities=_or_null(_closed(add={"type": "array", "items": TEXT}, drop={"type": "array", "items": TEXT})),
    procMount=_or_null(TEXT),
)

PROBE = _closed(
    initialDelaySeconds=SECONDS,
    periodSeconds=COUNT,
    timeoutSeconds=COUNT,
    failureThreshold=COUNT,
    successThreshold=COUNT,
    terminationGracePeriodSeconds=COUNT,
)
"""Numbers of a probe."""
ACCESS_MODES: Schema = {
    "type": "array",
    "minItems": 1,
    "items": {"enum": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"]},
}

RULES: dict[str, Schema] = {
    "profile": {"enum": ["gpu", "cpu"]},
    "profiles.*.tritonResources": MAP,
    "imagePullSecrets": LIST_OF_MAPS,
    "*.replicas": {"type": "integer", "minimum": 0},
    "*.image.pullPolicy": PULL,
    "*.image.digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})?$"},
    "*.extraEnv": NAMED,
    "*.extraEnvFrom": LIST_OF_MAPS,
    "*.extraVolumes": NAMED,
    "*.extraVolumeMounts": {"type": "array", "items": {"type": "object", "required": ["name", "mountPath"]}},
    "*.initContainers": NAMED,
    "*.sidecars": NAMED,
    "*.lifecycle": _closed(preStop=MAP, postStart=MAP, stopSignal=TEXT),
    "*.serviceAccount.annotations": MAP_OF_TEXT,
    "*.podSecurityContext": POD_CONTEXT,
    "*.containerSecurityContext": CONTAINER_CONTEXT,
    "*.podLabels": MAP_OF_TEXT,
    "*.deploymentAnnotations": MAP_OF_TEXT,
    "*.extraPodSpec": MAP,
    "commonLabels": MAP_OF_TEXT,
    "nameOverride": {"type": "string", "maxLength": 63},
    "extraObjects": {"type": "array", "items": {"type": ["object", "string"]}},
    "*.resources": MAP,
    "*.strategy.*": SHARE,
    "*.pdb.maxUnavailable": SHARE,
    "*.pdb.minAvailable": {**SHARE, "type": [*SHARE["type"], "null"]},
    "*.revisionHistoryLimit": {"type": "integer", "minimum": 0},
    "*.service.ipFamilyPolicy": {"enum": ["SingleStack", "PreferDualStack", "RequireDualStack", ""]},
    "*.service.ipFamilies": {"type": "array", "items": {"enum": ["IPv4", "IPv6"]}, "maxItems": 2},
    "*.probes.readiness": PROBE,
    "*.probes.liveness": PROBE,
    "triton.*.size": QUANTITY,
    "triton.models.pvc.size": QUANTITY,
    "triton.tensorrtCache.accessModes": ACCESS_MODES,
    "triton.models.pvc.accessModes": ACCESS_MODES,
    "*.nodeSelector": MAP_OF_TEXT,
    "*.tolerations": LIST_OF_MAPS,
    "*.affinity": MAP,
    "*.topologySpread.whenUnsatisfiable": SPREAD,
    "*.topologySpread.topologyKeys": {"type": "array", "items": TEXT},
    "*.podAnnotations": MAP_OF_TEXT,
    "gateway.service.type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    "gateway.service.port": PORT,
    "gateway.service.nodePort": {"type": "integer", "minimum": 0, "maximum": 65_535},
    "gateway.service.loadBalancerSourceRanges": {"type": "array", "items": TEXT},
    "gateway.service.externalTrafficPolicy": {"enum": ["Cluster", "Local", ""]},
    "gateway.tritonUrl": {"type": "string", "pattern": "^([^/,:\\[\\]]+|\\[[0-9a-fA-F:.]+\\]):[0-9]+$|^$"},
    "gateway.service.annotations": MAP_OF_TEXT,
    "gateway.autoscaling.targetCPUUtilizationPercentage": {"type": "integer", "minimum": 1, "maximum": 100},
    "gateway.autoscaling.*Replicas": COUNT,
    "triton.autoscaling.minReplicas": {"type": "integer", "minimum": 0},
    "triton.autoscaling.maxReplicas": COUNT,
    "gateway.autoscaling.metrics": LIST_OF_MAPS,
    "triton.autoscaling.by": {"enum": ["keda", "hpa"]},
    "triton.autoscaling.imagesPerTriton": {"type": "integer", "minimum": 0},
    "triton.autoscaling.authenticationRef": _closed(
        name=TEXT, kind={"enum": ["TriggerAuthentication", "ClusterTriggerAuthentication"]}
    ),
    "triton.autoscaling.triggerMetadata": MAP_OF_TEXT,
    "triton.autoscaling.fallback": _closed(
        failureThreshold=COUNT,
        replicas=COUNT,
        behavior={"enum": ["static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower"]},
    ),
    "triton.autoscaling.triggers": LIST_OF_MAPS,
    "triton.autoscaling.externalMetric.matchLabels": MAP_OF_TEXT,
    "triton.autoscaling.targetFullness": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "triton.autoscaling.window": DURATION,
    "triton.autoscaling.prometheusAddress": {"type": "string", "pattern": "^https?://"},
    "triton.args": {"type": "array", "items": TEXT},
    "triton.extraArgs": {"type": "array", "items": TEXT},
    "profiles.*.triton*Args": {"type": "array", "items": TEXT},
    "triton.models.source": {"enum": ["image", "pvc", "bucket"]},
    "triton.models.bucket.url": {"type": "string", "pattern": "^((https?|s3|gs|as)://.+)?$"},
    "triton.models.bucket.sha256": {"type": "string", "pattern": "^([0-9a-fA-F]{64})?$"},
    "triton.models.bucket.sizeLimit": QUANTITY,
    "triton.sharedMemory": {**QUANTITY, "pattern": f"{QUANTITY['pattern']}|^$"},
    "triton.redis.port": PORT,
    "triton.probes.model": TEXT,
    "triton.probes.livenessTimeoutSeconds": {"type": "integer", "minimum": 3},
    "triton.probes.*": COUNT,
    "networkPolicy.*From": LIST_OF_MAPS,
    "networkPolicy.tritonEgress": LIST_OF_MAPS,
    "test.pod*": MAP_OF_TEXT,
    "ingress.preset": {"enum": ["ingress-nginx", "nginx-inc", ""]},
    "ingress.annotations": MAP_OF_TEXT,
    "ingress.hosts": {"type": "array", "items": {"type": "string", "minLength": 1}},
    "ingress.tls": LIST_OF_MAPS,
    "ingress.paths": {
        "type": "array",
        "minItems": 1,
        "items": _closed(
            ("path",),
            path={"type": "string", "pattern": "^/"},
            pathType={"enum": ["Exact", "Prefix", "ImplementationSpecific"]},
        ),
    },
    "httpRoute.parentRefs": LIST_OF_MAPS,
    "httpRoute.hostnames": {"type": "array", "items": TEXT},
    "httpRoute.requestTimeout": {"type": "string", "pattern": "^(([0-9]+(ms|s|m|h))+)?$"},
    "monitoring.serviceMonitor.authorization": MAP,
    "monitoring.serviceMonitor.interval": DURATION,
    "monitoring.*.labels": MAP_OF_TEXT,
    "monitoring.*.annotations": MAP_OF_TEXT,
}
"""Schemas that cannot be derived from values.yaml; the first match counts. `*` matches a name without a dot."""


def setting_schema(field: str) -> Schema:
    """The schema of a GATEWAY_ variable."""
    info = Settings.model_fields[field]
    bounds = {name: getattr(each, name) for each in info.metadata for name in _JSON_NAMES if hasattr(each, name)}
    kind = info.annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [choice.value for choice in kind]}
    name = {bool: "boolean", int: "integer", float: "number"}.get(kind, "string")
    for word, units in _UNITS.items():
        if kind in {int, float} and word in field:
            bounds["pattern"] = f"^[0-9]+(\\.[0-9]+)? ?({units})$"
            return {
                "type": [name, "string"],
                **{_JSON_NAMES.get(bound, bound): value for bound, value in bounds.items()},
            }
    return {"type": name, **{_JSON_NAMES[bound]: value for bound, value in bounds.items()}}


_UNITS = {"bytes": "kB|MB|GB|KiB|MiB|GiB", "seconds": "s"}
"""Units that gateway/values/setting_values.py reads, by a word in the setting's name."""
_JSON_NAMES = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "min_length": "minLength",
    "max_length": "maxLength",
}


def schema() -> str:
    """values.schema.json: it lists every name, so that a misspelt one is refused."""
    settings = {
        "type": "object",
        "additionalProperties": False,
        "properties": {variable(field): setting_schema(field) for field in Settings.model_fields if field not in OWN},
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


def described() -> Iterator[tuple[str, str, str]]:
    """Each value of values.yaml: its path, its default as JSON, and the comment above it."""
    text = (CHART / "values.yaml").read_text()
    comment: list[str] = []
    parents: list[tuple[int, str]] = []
    values = yaml.safe_load(text)
    for line in text.splitlines():
        if match := re.fullmatch(r" *# (.*)", line):
            comment.append(match[1])
        elif match := re.match(r"( *)(\w+):", line):
            parents = [(indent, name) for indent, name in parents if indent < len(match[1])]
            parents.append((len(match[1]), match[2]))
            if comment and not _open(parents):
                value = values
                for _, name in parents:
                    value = value[name]
                yield ".".join(name for _, name in parents), _short(value), " ".join(comment)
            comment = []
        else:
            comment = []


def _open(parents: list[tuple[int, str]]) -> bool:
    """Whether the line has no row of its own, since its children have: only `profiles`."""
    return [name for _, name in parents] == ["profiles"]


def _short(value: object) -> str:
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def with_table(readme: str) -> str:
    """The chart's README with its table of values written again."""
    rows = "\n".join(
        f"| `{path}` | {default} | {meaning.replace('|', chr(92) + '|')} |" for path, default, meaning in described()
    )
    table_pattern = re.compile(r"(<!-- table: values -->\n).*?(\n<!-- end -->)", re.DOTALL)
    if not table_pattern.search(readme):
        raise ValueError("the chart's README.md lacks the markers of the table of values")
    table = f"| value | default | meaning |\n| --- | --- | --- |\n{rows}"
    return table_pattern.sub(lambda match: match[1] + table + match[2], readme)
