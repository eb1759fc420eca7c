"""Schemas of the custom resources that deploy/ makes: the fields that it uses, and no others, each with its source.

They are written by hand: the definitions themselves hold whole pod templates. A pod template inside of one is checked
against the schemas of Kubernetes, and a ScaledObject inside of a template against the one here.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jsonschema
import kubernetes_validate  # type: ignore[import-untyped]

KUBERNETES = ("1.30", "1.37")
"""The oldest version that the chart allows, and the newest whose schemas are installed."""


def _object(required: Sequence[str] = (), /, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": properties}


_TEXT = {"type": "string", "minLength": 1}
_ANY_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 1}
_NAMED = _object(["name"], name=_TEXT)
_DURATION = {"type": "string", "pattern": "^([0-9]+(s|m|h))+$"}
_POLICIES = {
    "type": "array",
    "items": _object(
        ["type", "value", "periodSeconds"], type={"enum": ["Percent", "Pods"]}, value=_COUNT, periodSeconds=_COUNT
    ),
}
_RULES = _object(
    stabilizationWindowSeconds={"type": "integer", "minimum": 0, "maximum": 3600},
    policies=_POLICIES,
    selectPolicy={"enum": ["Max", "Min", "Disabled"]},
)
_FLAG = {"enum": ["true", "false"]}

TEMPORAL_TRIGGER = _object(
    ["endpoint", "namespace", "taskQueue", "targetQueueSize"],
    endpoint={"type": "string", "pattern": r"^[\w.-]+:\d+$"},
    namespace=_ANY_TEXT,
    taskQueue=_TEXT,
    queueTypes={"enum": ["workflow", "activity", "workflow,activity"]},
    targetQueueSize={"type": "string", "pattern": "^[1-9][0-9]*$"},
    includeRunningWorkflowCount=_FLAG,
    workflowTaskQueueForCount=_TEXT,
    workerDeploymentName=_ANY_TEXT,
    workerDeploymentBuildId=_ANY_TEXT,
)
"""https://keda.sh/docs/2.22/scalers/temporal/; values are texts, also of numbers."""

PROMETHEUS_TRIGGER = _object(["serverAddress", "query", "threshold"], serverAddress=_TEXT, query=_TEXT, threshold=_TEXT)
"""https://keda.sh/docs/2.22/scalers/prometheus/."""

_TRIGGER = {
    "oneOf": [
        _object(["type", "metadata"], type={"const": "temporal"}, metadata=TEMPORAL_TRIGGER, authenticationRef=_NAMED),
        _object(["type", "metadata"], type={"const": "prometheus"}, metadata=PROMETHEUS_TRIGGER),
    ]
}

SCALED_OBJECT = _object(
    ["scaleTargetRef", "triggers"],
    scaleTargetRef=_object(name=_TEXT),
    pollingInterval=_COUNT,
    minReplicaCount=_COUNT,
    maxReplicaCount=_COUNT,
    advanced=_object(horizontalPodAutoscalerConfig=_object(behavior=_object(scaleUp=_RULES, scaleDown=_RULES))),
    triggers={"type": "array", "minItems": 1, "items": _TRIGGER},
)
"""https://keda.sh/docs/2.22/reference/scaledobject-spec/."""

_SECRET_KEY = _object(["name", "key"], name=_TEXT, key=_TEXT)

_TEXTS = {"type": "object", "additionalProperties": _ANY_TEXT}

_RULE = {
    "oneOf": [
        _object(["record", "expr"], record=_TEXT, expr=_TEXT),
        _object(
            ["alert", "expr"],
            **{"alert": _TEXT, "expr": _TEXT, "for": _DURATION, "keep_firing_for": _DURATION},
            labels=_TEXTS,
            annotations=_TEXTS,
        ),
    ]
}

SPECS: Mapping[tuple[str, str], dict[str, Any]] = {
    ("keda.sh/v1alpha1", "ScaledObject"): SCALED_OBJECT,
    # https://keda.sh/docs/2.22/concepts/authentication/
    ("keda.sh/v1alpha1", "TriggerAuthentication"): _object(
        ["secretTargetRef"],
        secretTargetRef={
            "type": "array",
            "items": _object(
                ["parameter", "name", "key"], parameter={"enum": ["apiKey", "cert", "key"]}, name=_TEXT, key=_TEXT
            ),
        },
    ),
    # The next three: helm/temporal-worker-controller-crds of release 1.8.1 of the Temporal Worker Controller
    ("temporal.io/v1alpha1", "WorkerDeployment"): _object(
        ["rollout", "sunset", "template", "workerOptions"],
        replicas={"type": "integer", "minimum": 0},
        minReadySeconds={"type": "integer", "minimum": 0},
        workerOptions=_object(["connectionRef", "temporalNamespace"], connectionRef=_NAMED, temporalNamespace=_TEXT),
        rollout=_object(
            ["strategy"],
            strategy={"enum": ["Manual", "AllAtOnce", "Progressive"]},
            steps={
                "type": "array",
                "items": _object(["rampPercentage", "pauseDuration"], rampPercentage=_COUNT, pauseDuration=_DURATION),
            },
        ),
        sunset=_object(scaledownDelay=_DURATION, deleteDelay=_DURATION),
        template={"type": "object"},
    ),
    ("temporal.io/v1alpha1", "Connection"): _object(
        ["hostPort"],
        hostPort={"type": "string", "pattern": "^[a-zA-Z0-9.-]+:[0-9]+$"},
        apiKeySecretRef=_SECRET_KEY,
        mutualTLSSecretRef=_NAMED,
    ),
    ("temporal.io/v1alpha1", "WorkerResourceTemplate"): _object(
        ["workerDeploymentRef", "template"],
        workerDeploymentRef=_NAMED,
        template=_object(
            ["apiVersion", "kind", "spec"],
            apiVersion={"const": "keda.sh/v1alpha1"},
            kind={"const": "ScaledObject"},
            spec=SCALED_OBJECT,
        ),
    ),
    # This one and the next: https://prometheus-operator.dev/docs/api-reference/api/
    ("monitoring.coreos.com/v1", "PrometheusRule"): _object(
        ["groups"],
        groups={
            "type": "array",
            "minItems": 1,
            "items": _object(
                ["name", "rules"],
                name=_TEXT,
                interval=_DURATION,
                rules={"type": "array", "minItems": 1, "items": _RULE},
            ),
        },
    ),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): _object(
        ["selector", "endpoints"],
        selector=_object(
            matchLabels={"type": "object"},
            matchExpressions={
                "type": "array",
                "items": _object(
                    ["key", "operator", "values"],
                    key=_TEXT,
                    operator={"enum": ["In", "NotIn"]},
                    values={"type": "array", "items": _TEXT},
                ),
            },
        ),
        endpoints={
            "type": "array",
            "items": _object(
                ["port", "path"],
                port=_TEXT,
                path=_TEXT,
                interval=_DURATION,
                relabelings={"type": "array", "items": _object(["targetLabel"], targetLabel=_TEXT, replacement=_TEXT)},
            ),
        },
    ),
}
"""The schema of the field ``spec`` of each kind."""


def validate(manifest: dict[str, Any]) -> None:
    """Check an object against the schemas of Kubernetes, or against the one here.

    Raises:
        jsonschema.ValidationError: It has a field that is unknown, missing, or of another type.
        kubernetes_validate.InvalidSchemaError: Its kind is known to neither.
    """
    kind = (manifest["apiVersion"], manifest["kind"])
    if kind not in SPECS:
        for version in KUBERNETES:
            kubernetes_validate.validate(manifest, version, strict=True)
        return
    named = _object(
        ["apiVersion", "kind", "metadata", "spec"], apiVersion=_TEXT, kind=_TEXT, metadata={}, spec=SPECS[kind]
    )
    jsonschema.validate(manifest, named)
    if kind[1] == "WorkerDeployment":
        pods = manifest["spec"]["template"]
        labels = pods["metadata"]["labels"]
        spec = {"template": pods, "selector": {"matchLabels": labels}}
        validate({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": manifest["metadata"], "spec": spec})
