"""What is applied to Kubernetes: the chart and the kustomize tree say the same, are valid, and keep our promises."""

import functools
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from perdure.cli.main import cli
from perdure.cli.worker import STOP_MARGIN
from perdure.contracts.queues import RateLimit, Role, models_queue, role_of_queue
from perdure.settings import Settings, credentials_in
from tests.contract import manifests
from tests.contract.custom_resources import validate
from tests.contract.manifests import (
    CONTROLLER,
    KEDA,
    MONITORING,
    ROLES,
    TREE,
    Manifest,
    RenderError,
    Values,
    comparable,
    helm_template,
    kustomize_build,
)
from tests.contract.repository import ROOT

API_KEY: Values = {
    "temporal": {
        "auth": "apiKey",
        "address": "us-east-1.aws.api.temporal.io:7233",
        "namespace": "my-namespace.a1b2c",
    },
    "migrate": {"searchAttributes": False},
}
MTLS: Values = {
    "temporal": {"auth": "mtls", "address": "my-namespace.a1b2c.tmprl.cloud:7233", "namespace": "my-namespace.a1b2c"},
    "migrate": {"searchAttributes": False},
}
PROMETHEUS: Values = {"keda": {"enabled": True, "prometheus": "http://prometheus.monitoring:9090"}}
WATCHED: Values = MONITORING | {
    "prometheusRule": {
        "enabled": True,
        "labels": {"release": "monitoring"},
        "objectives": {"failed_ratio": 0.05, "usd_per_hour": 2_000_000},
    },
    "dashboards": {"enabled": True, "annotations": {"grafana_folder": "perdure"}},
}
DIGEST = "sha256:" + "0" * 64

CASES: Mapping[str, Values] = {
    "default": {},
    "api key": API_KEY,
    "mtls": MTLS,
    "roles": ROLES,
    "keda": KEDA,
    "keda with roles, an API key and Prometheus": ROLES | API_KEY | PROMETHEUS,
    "worker controller": CONTROLLER,
    "worker controller with mtls, keda and roles": CONTROLLER | MTLS | PROMETHEUS | ROLES,
    "monitoring": MONITORING,
    "rules and dashboards": WATCHED,
    "no gateway, no job, no extras": {
        "gateway": {"enabled": False},
        "migrate": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
    },
    "everything a value can add": {
        "image": {"repository": "registry.example.com/agents", "digest": DIGEST, "pullSecrets": ["pull"]},
        "config": {"PERDURE_LOG_LEVEL": "debug", "PERDURE_MAX_ACTIVITIES": 50},
        "extraEnv": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "extraVolumes": [{"name": "authority", "configMap": {"name": "company-ca"}}],
        "extraVolumeMounts": [{"name": "authority", "mountPath": "/etc/ssl/company", "readOnly": True}],
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}},
        "worker": {"extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}], "existingSecret": ""},
        "networkPolicy": {
            "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
            "gatewayFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
            "metadataService": True,
        },
        "podAnnotations": {"example.com/owner": "agents"},
        "podLabels": {"team": "agents"},
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "tolerations": [{"key": "agents", "operator": "Exists"}],
        "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/agents"}},
    },
}

OVERLAYS: Mapping[str, tuple[str, tuple[str, ...], Values]] = {
    "base": ("base", (), {}),
    "temporal-cloud-api-key": ("overlays/temporal-cloud-api-key", (), API_KEY),
    "temporal-cloud-mtls": ("overlays/temporal-cloud-mtls", (), MTLS),
    "keda": ("base", ("keda",), KEDA),
    "roles": ("base", ("roles",), ROLES),
    "roles and keda": ("base", ("roles", "keda-roles"), ROLES | KEDA),
    "monitoring": ("base", ("monitoring",), MONITORING),
    "worker-controller": ("base", ("worker-controller",), CONTROLLER),
    "roles and worker-controller": ("base", ("roles", "worker-controller"), ROLES | CONTROLLER),
    "worker-controller and keda": ("base", ("worker-controller", "keda-worker-controller"), CONTROLLER | KEDA),
}
"""Each way to build the tree, its components, and the values by which the chart renders the same."""

needs_kustomize = pytest.mark.skipif(
    not manifests.has_kustomize(), reason="there is no kubectl with kustomize 4 or newer; the package kubernetes-client"
)


@functools.cache
def _rendered(values: str) -> list[Manifest]:
    return helm_template(json.loads(values))


def rendered(values: Values) -> list[Manifest]:
    """What the chart renders; each set of values is rendered once."""
    return _rendered(json.dumps(values))


def named(objects: list[Manifest], kind: str) -> dict[str, Manifest]:
    return {item["metadata"]["name"]: item for item in objects if item["kind"] == kind}


def pods(objects: list[Manifest]) -> Iterator[tuple[Manifest, dict[str, Any]]]:
    """Each object that makes pods, with their spec."""
    for item in objects:
        if item["kind"] in {"Deployment", "WorkerDeployment", "Job"}:
            yield item, item["spec"]["template"]["spec"]


def variables(item: Manifest, objects: list[Manifest]) -> dict[str, Any]:
    """The variables of an object's container: their values, or where those come from."""
    config = named(objects, "ConfigMap")["perdure"]
    (container,) = item["spec"]["template"]["spec"]["containers"]
    told = dict(config["data"]) if {"configMapRef": {"name": "perdure"}} in container["envFrom"] else {}
    return told | {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


SELECTORS: Mapping[str, Callable[[Manifest], Mapping[str, Any]]] = {
    "Service": lambda spec: {"matchLabels": spec["selector"]},
    "PodDisruptionBudget": lambda spec: spec["selector"],
    "NetworkPolicy": lambda spec: spec["podSelector"],
    "Deployment": lambda spec: spec["selector"],
}


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector takes these labels."""
    same = selector.get("matchLabels", {}).items() <= labels.items()
    terms = selector.get("matchExpressions", [])
    assert {term["operator"] for term in terms} <= {"In"}
    return same and all(labels.get(term["key"]) in term["values"] for term in terms)


def test_the_tree_is_written_from_the_chart() -> None:
    stale = [str(path) for path, text in manifests.generated().items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run `make manifests`"


@needs_kustomize
@pytest.mark.parametrize("name", OVERLAYS)
def test_kustomize_builds_what_the_chart_renders(name: str, tmp_path: Path) -> None:
    folder, components, values = OVERLAYS[name]
    shutil.copytree(TREE, tmp_path / "kubernetes")
    overlay = {
        "resources": [f"../kubernetes/{folder}"],
        "components": [f"../kubernetes/components/{c}" for c in components],
    }
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/kustomization.yaml").write_text(yaml.safe_dump(overlay))
    built = kustomize_build(tmp_path / "mine")
    assert comparable(built) == comparable(rendered(values))


@needs_kustomize
def test_every_component_and_overlay_is_built_by_a_test() -> None:
    built = {part for folder, parts, _ in OVERLAYS.values() for part in (folder, *(f"components/{p}" for p in parts))}
    assert built == {path.parent.relative_to(TREE).as_posix() for path in TREE.rglob("kustomization.yaml")}


@pytest.mark.parametrize("case", CASES)
def test_what_the_chart_renders_is_valid(case: str) -> None:
    for item in rendered(CASES[case]):
        validate(item)


@pytest.mark.parametrize("case", CASES)
def test_pods_have_few_rights(case: str) -> None:
    for item, spec in pods(rendered(CASES[case])):
        security = spec["securityContext"]
        assert (security["runAsNonRoot"], security["runAsUser"]) == (True, 10001), item["metadata"]["name"]
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {volume["name"] for volume in spec["volumes"]} == {m["name"] for m in container["volumeMounts"]}
        assert {"requests", "limits"} <= container["resources"].keys()
        assert (container["env"][0]["name"], container["env"][0]["value"]) == ("HOME", "/tmp")


@pytest.mark.parametrize("grace", [None, 300])
def test_a_pod_is_killed_after_its_drain_and_not_before(grace: int | None) -> None:
    values: Values = {} if grace is None else {"shutdownGraceSeconds": grace}
    objects = rendered(values)
    served = [(item, spec) for item, spec in pods(objects) if item["kind"] == "Deployment"]
    assert len(served) == 2
    for item, spec in served:
        told = float(variables(item, objects)["PERDURE_SHUTDOWN_GRACE"])
        assert told == (grace or Settings.model_fields["shutdown_grace"].default.total_seconds())
        assert spec["terminationGracePeriodSeconds"] == told + STOP_MARGIN.total_seconds()
        sleep = spec["containers"][0].get("lifecycle", {}).get("preStop", {}).get("sleep", {"seconds": 0})
        assert sleep["seconds"] < STOP_MARGIN.total_seconds()


@pytest.mark.parametrize("case", CASES)
def test_selectors_find_pods(case: str) -> None:
    """Each Service, budget and policy has pods; no two Deployments share any."""
    objects = rendered(CASES[case])
    labels = {item["metadata"]["name"]: item["spec"]["template"]["metadata"]["labels"] for item, _ in pods(objects)}
    for item in objects:
        select = SELECTORS.get(item["kind"])
        if select is None:
            continue
        found = [name for name, own in labels.items() if selects(select(item["spec"]), own)]
        assert found, f"{item['kind']} {item['metadata']['name']}"
        if item["kind"] != "NetworkPolicy":
            assert found == [item["metadata"]["name"]]
    for item in named(objects, "ServiceMonitor").values():
        monitored = [
            service
            for service in named(objects, "Service").values()
            if selects(item["spec"]["selector"], service["metadata"]["labels"])
        ]
        ports = {port["name"] for service in monitored for port in service["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in item["spec"]["endpoints"]} == ports
    for item in objects:
        assert {f"app.kubernetes.io/{name}" for name in ("name", "instance", "component", "part-of", "version")} <= set(
            item["metadata"]["labels"]
        )


@pytest.mark.parametrize("case", CASES)
def test_probes_ask_ports_that_a_container_has(case: str) -> None:
    for item, spec in pods(rendered(CASES[case])):
        (container,) = spec["containers"]
        if item["kind"] == "Job":
            continue
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        asked = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
        assert [asked[name]["path"] for name in asked] == ["/healthz", "/healthz", "/readyz"]
        assert {probe["port"] for probe in asked.values()} == set(ports)
        address = Settings.model_fields[
            "gateway_address" if "gateway" in container["name"] else "metrics_address"
        ].default
        assert list(ports.values()) == [int(address.rpartition(":")[2])]


@pytest.mark.parametrize("case", CASES)
def test_secrets_are_named_and_never_told(case: str) -> None:
    objects = rendered(CASES[case])
    assert named(objects, "Secret") == {}
    for item, _ in pods(objects):
        told = {name: value for name, value in variables(item, objects).items() if isinstance(value, str)}
        assert credentials_in(told) == frozenset()


@pytest.mark.parametrize("case", CASES)
def test_variables_are_settings_and_commands_exist(case: str) -> None:
    objects = rendered(CASES[case])
    known = {f"PERDURE_{name}".upper() for name in Settings.model_fields}
    for item, spec in pods(objects):
        ours = {name for name in variables(item, objects) if name.startswith("PERDURE_")}
        assert ours <= known
        assert_exists(spec["containers"][0]["command"])


def assert_exists(command: list[str]) -> None:
    """See that a command of a container is one: the worker's module, or verbs of perdure with their options."""
    if command[:2] == ["sh", "-c"]:
        for part in command[2].split("&&"):
            assert_exists(part.removeprefix(" exec").split())
        return
    if command[:2] == ["python", "-m"]:
        assert command[2:] == ["perdure.worker"]
        return
    assert command[0] == "perdure"
    found: Any = cli
    for word in command[1:]:
        if word.startswith("--"):
            assert any(word in parameter.opts for parameter in found.params), command
            continue
        found = found.get_command(None, word)
        assert found is not None, command


def test_a_role_has_its_queue_and_its_scaler() -> None:
    objects = rendered(ROLES | API_KEY | PROMETHEUS)
    assert set(named(objects, "Deployment")) == {f"perdure-{name}" for name in (*Role, "gateway")}
    for role in Role:
        deployment, scaler = (named(objects, kind)[f"perdure-{role}"] for kind in ("Deployment", "ScaledObject"))
        assert variables(deployment, objects)["PERDURE_ROLES"] == role
        assert "replicas" not in deployment["spec"], "the scaler's figure would be overwritten at each upgrade"
        assert scaler["spec"]["scaleTargetRef"]["name"] == f"perdure-{role}"
        backlog, running = scaler["spec"]["triggers"]
        assert role_of_queue("perdure", backlog["metadata"]["taskQueue"]) == role
        assert backlog["metadata"]["includeRunningWorkflowCount"] == "true"
        assert backlog["metadata"]["workflowTaskQueueForCount"] == "perdure"
        assert backlog["authenticationRef"]["name"] in named(objects, "TriggerAuthentication")
        assert running["metadata"]["query"] == "max(perdure_turns_running)"
        assert (scaler["spec"]["minReplicaCount"], scaler["spec"]["maxReplicaCount"]) == (2, 20)


@pytest.mark.parametrize(("values", "component"), [({}, "worker"), (ROLES, "models")], ids=["one for all", "roles"])
def test_each_key_whose_rate_is_limited_has_a_queue_that_scales_its_workers(values: Values, component: str) -> None:
    limits = "openai=50/s, TEAM_KEY=300/m"
    scaler = named(rendered(values | KEDA | {"config": {"PERDURE_RATE_LIMITS": limits}}), "ScaledObject")
    queues = [trigger["metadata"]["taskQueue"] for trigger in scaler[f"perdure-{component}"]["spec"]["triggers"]]
    first = "perdure" if component == "worker" else models_queue("perdure")
    keys = [RateLimit.parse(limit.strip()).key for limit in limits.split(",")]
    assert sorted(queues) == sorted([first, *(models_queue("perdure", key) for key in keys)])


def test_the_controller_scales_each_version_by_itself() -> None:
    """It owns target, deployment, build id and namespace, and refuses a template that names them."""
    objects = rendered(CONTROLLER | PROMETHEUS)
    (template,) = named(objects, "WorkerResourceTemplate").values()
    assert template["spec"]["workerDeploymentRef"]["name"] in named(objects, "WorkerDeployment")
    scaler = template["spec"]["template"]["spec"]
    metadata = scaler["triggers"][0]["metadata"]
    assert scaler["scaleTargetRef"] == {}
    assert [metadata[name] for name in ("namespace", "workerDeploymentName", "workerDeploymentBuildId")] == ["", "", ""]
    (worker,) = named(objects, "WorkerDeployment").values()
    assert worker["spec"]["workerOptions"]["connectionRef"]["name"] in named(objects, "Connection")


REFUSED: Mapping[str, tuple[Values, str]] = {
    "a misspelt name": ({"worker": {"replica": 2}}, "worker: Additional property replica is not allowed"),
    "no port": ({"temporal": {"address": "temporal"}}, "temporal.address: Does not match pattern"),
    "another way in": ({"temporal": {"auth": "token"}}, 'must be one of the following: "none", "apiKey", "mtls"'),
    "scaling to zero": ({"keda": {"minReplicas": 0}}, "keda.minReplicas: Must be greater than or equal to 1"),
    "least over most": (
        {"keda": {"enabled": True, "minReplicas": 30}},
        "keda.minReplicas (30) is more than keda.maxReplicas (20)",
    ),
    "a negative grace": ({"shutdownGraceSeconds": -1}, "shutdownGraceSeconds: Must be greater than or equal to 0"),
    "half a digest": ({"image": {"digest": "sha256:00"}}, "image.digest: Does not match pattern"),
    "no agents": ({"agents": ""}, "agents: String length must be greater than or equal to 1"),
    "a variable in small letters": ({"config": {"log_level": "x"}}, "config: Additional property log_level"),
    "a secret in the open": (
        {"config": {"PERDURE_STORE_URL": "postgresql://…"}},
        "config.PERDURE_STORE_URL is a secret; put it into a Secret that existingSecret names",
    ),
    "one setting twice": (
        {"config": {"PERDURE_TASK_QUEUE": "mine"}},
        "config.PERDURE_TASK_QUEUE has a value of its own in values.yaml; set that one",
    ),
}


def test_the_gateways_tokens_are_a_file_that_a_changed_secret_changes() -> None:
    """T-09: a variable, or a file that is mounted by itself (subPath), would stay as it is until a restart."""
    ((item, spec),) = [pod for pod in pods(rendered({})) if pod[0]["metadata"]["name"] == "perdure-gateway"]
    (container,) = spec["containers"]
    (volume,) = [
        volume for volume in spec["volumes"] if volume.get("secret", {}).get("secretName") == "perdure-gateway"
    ]
    (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == volume["name"]]
    assert variables(item, rendered({}))["PERDURE_GATEWAY_TOKENS_FILE"] == f"{mount['mountPath']}/tokens"
    assert mount.keys() == {"name", "mountPath", "readOnly"}
    assert {"secretRef": {"name": "perdure-gateway"}} not in container["envFrom"]
    without = rendered({"gateway": {"existingSecret": ""}})
    assert "gateway-tokens" not in str(without)
    assert "TOKENS_FILE" not in str(without)


def test_every_pod_has_the_volumes_and_the_places_of_its_values() -> None:
    """The authority of a private certificate has to be in the job before an installation, too."""
    values = CASES["everything a value can add"]
    pods = [item["spec"]["template"]["spec"] for item in rendered(values) if "template" in item.get("spec", {})]
    assert len(pods) >= 3
    for pod in pods:
        assert values["extraVolumes"][0] in pod["volumes"]
        assert values["extraVolumeMounts"][0] in pod["containers"][0]["volumeMounts"]
        assert pod["affinity"] == values["affinity"]


@pytest.mark.parametrize("case", REFUSED)
def test_bad_values_are_refused_in_a_line(case: str) -> None:
    values, said = REFUSED[case]
    with pytest.raises(RenderError) as refused:
        helm_template(values)
    (line,) = [line for line in str(refused.value).splitlines() if said in line]
    assert len(line) < 200


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.template.spec.terminationGracePeriod", 3),
        ("spec.replicas", "two"),
        ("spec.template.spec.containers.0.securityContext.readOnlyRootFileSystem", True),
    ],
)
@pytest.mark.parametrize("values", [{}, CONTROLLER], ids=["Deployment", "WorkerDeployment"])
def test_a_planted_mistake_is_found(path: str, value: object, values: Values) -> None:
    item = json.loads(json.dumps(rendered(values)))  # a copy
    (worker,) = [
        found for found in item if found["metadata"]["name"] == "perdure-worker" and "template" in found.get("spec", {})
    ]
    *above, last = path.split(".")
    place: Any = worker
    for name in above:
        place = place[int(name)] if name.isdigit() else place[name]
    place[last] = value
    with pytest.raises(jsonschema.ValidationError):
        validate(worker)


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((manifests.CHART / "Chart.yaml").read_text(encoding="utf-8"))
    package = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{chart["appVersion"]}"' in package
    assert chart["version"] == chart["appVersion"]


def test_every_value_has_a_default_and_a_schema() -> None:
    """The file of defaults is the list of values; what only the schema knew, nobody would find."""
    defaults = yaml.safe_load((manifests.CHART / "values.yaml").read_text(encoding="utf-8"))
    schema = json.loads((manifests.CHART / "values.schema.json").read_text(encoding="utf-8"))
    assert schema["properties"].keys() - {"global"} == defaults.keys()  # Helm itself adds global
    for name, value in defaults.items():
        known = schema["properties"][name]
        if "properties" in known:
            assert known["properties"].keys() == value.keys(), name
            assert known["additionalProperties"] is False
