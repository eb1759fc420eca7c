"""The chart and the kustomize tree, rendered; ``make manifests`` writes the files of the tree that come from the chart.

The chart is the source: Helm comes as a wheel, so that it renders on every machine. What kustomize builds is brought to
the same form and compared with what the chart renders.
"""

import copy
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.contract.repository import ROOT

CHART = ROOT / "deploy/helm/perdure"
TREE = ROOT / "deploy/kubernetes"
HEAD = "# Made by `make manifests` from deploy/helm/perdure.\n"

Manifest = dict[str, Any]
Values = dict[str, Any]

OF_HELM = {"app.kubernetes.io/managed-by", "helm.sh/chart"}
"""Labels that say who rendered."""

ROLES: Values = {"worker": {"separateRoles": True}}
KEDA: Values = {"keda": {"enabled": True}}
CONTROLLER: Values = {"workerController": {"enabled": True}}
MONITORING: Values = {"serviceMonitor": {"enabled": True}}

COMPONENTS: Mapping[str, tuple[Values, frozenset[str]]] = {
    "keda/keda.yaml": (KEDA, frozenset({"ScaledObject"})),
    "keda-roles/keda.yaml": (ROLES | KEDA, frozenset({"ScaledObject"})),
    "keda-worker-controller/keda.yaml": (CONTROLLER | KEDA, frozenset({"WorkerResourceTemplate"})),
    "monitoring/servicemonitor.yaml": (MONITORING, frozenset({"ServiceMonitor"})),
    "worker-controller/connection.yaml": (CONTROLLER, frozenset({"Connection"})),
    "roles/roles.yaml": (ROLES, frozenset({"Deployment", "Service", "PodDisruptionBudget"})),
}
"""Each file below ``components`` with the values it is rendered by, and the kinds it takes of that."""


class RenderError(Exception):
    """Helm or kustomize refused; the message is what it printed."""


def helm_template(values: Values | None = None, *arguments: str, chart: Path = CHART) -> list[Manifest]:
    """The objects that the chart, or a copy of it, renders, its hooks among them.

    Raises:
        RenderError: Helm refuses the values.
    """
    command = [helm(), "template", "perdure", str(chart), "--namespace", "perdure", "--values", "-", *arguments]
    return _documents(command, yaml.safe_dump(dict(values or {})))


def kustomize_build(folder: Path) -> list[Manifest]:
    """The objects that kustomize builds in a folder.

    Raises:
        RenderError: It refuses.
    """
    return _documents(["kubectl", "kustomize", "--load-restrictor", "LoadRestrictionsNone", str(folder)], "")


def has_kustomize() -> bool:
    """Whether this machine has a kubectl whose kustomize knows components."""
    if shutil.which("kubectl") is None:
        return False
    said = subprocess.run(["kubectl", "version", "--client"], capture_output=True, text=True, check=False).stdout
    return re.search(r"Kustomize Version: v([4-9]|\d\d)\.", said) is not None


def comparable(manifests: Iterable[Manifest]) -> dict[str, Manifest]:
    """Objects by kind and name, without who rendered them, in one order, and with the variables that containers get."""
    objects = copy.deepcopy([manifest for manifest in manifests if not _is_test(manifest)])
    config = {item["metadata"]["name"]: item["data"] for item in objects if item["kind"] == "ConfigMap"}
    for item in objects:
        _strip(item)
        if item["kind"] == "ConfigMap":  # kustomize generates it: with a hash in its name, and without a version
            item["metadata"]["labels"].pop("app.kubernetes.io/version", None)
            item["metadata"]["name"] = "perdure"
        template = item.get("spec", {}).get("template", {})
        _strip(template)
        for container in template.get("spec", {}).get("containers", []):
            _expand(container, config)
    return {f"{item['kind']}/{item['metadata']['name']}": item for item in objects}


def generated() -> dict[Path, str]:
    """The text of each file of the tree that is made from the chart."""
    rendered = [item for item in helm_template() if not _is_test(item)]
    (config,) = [item["data"] for item in rendered if item["kind"] == "ConfigMap"]
    base = [_for_kustomize(item, config) for item in rendered if item["kind"] != "ConfigMap"]
    files = {
        TREE / "base/perdure.yaml": HEAD + _dump(base),
        TREE / "base/perdure.env": HEAD + "".join(f"{name}={value}\n" for name, value in config.items()),
    }
    ours = comparable(rendered)
    for path, (values, kinds) in COMPONENTS.items():
        items = [item for item in helm_template(values) if item["kind"] in kinds]
        added = [item for item in items if f"{item['kind']}/{item['metadata']['name']}" not in ours]
        files[TREE / "components" / path] = HEAD + _dump([_for_kustomize(item, config) for item in added])
    return files


def _for_kustomize(item: Manifest, config: Mapping[str, str]) -> Manifest:
    """An object of the chart as a resource of kustomize, which reads variables from the generated ConfigMap."""
    item = copy.deepcopy(item)
    _strip(item)
    template = item.get("spec", {}).get("template", {})
    _strip(template)
    for container in template.get("spec", {}).get("containers", []):
        inline = [entry for entry in container["env"] if config.get(entry["name"]) == entry.get("value")]
        if inline:  # a hook, which runs before Helm has made the ConfigMap
            container["env"] = [entry for entry in container["env"] if entry not in inline]
            container["envFrom"].insert(0, {"configMapRef": {"name": "perdure"}})
    return item


def _strip(item: Manifest) -> None:
    """Take away what says who rendered, and what only Helm reads."""
    metadata = item.get("metadata", {})
    for name in OF_HELM:
        metadata.get("labels", {}).pop(name, None)
    annotations = metadata.get("annotations", {})
    for name in list(annotations):
        if name.startswith(("helm.sh/", "checksum/")):
            del annotations[name]
    if not annotations:
        metadata.pop("annotations", None)


def _expand(container: Manifest, config: Mapping[str, Mapping[str, str]]) -> None:
    """Put the values of a ConfigMap in the place of its name."""
    sources = container.pop("envFrom", [])
    names = [source["configMapRef"]["name"] for source in sources if "configMapRef" in source]
    env = [{"name": name, "value": value} for source in names for name, value in config[source].items()]
    container["env"] = sorted(env + container.get("env", []), key=lambda entry: str(entry["name"]))
    container["envFrom"] = [source for source in sources if "configMapRef" not in source]


def _is_test(item: Manifest) -> bool:
    return bool(item["metadata"].get("annotations", {}).get("helm.sh/hook") == "test")


def helm() -> str:
    """The program: that of the lock, or else the machine's."""
    return shutil.which("helm", path=str(Path(sys.executable).parent)) or "helm"


def _documents(command: Sequence[str], text: str) -> list[Manifest]:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise RenderError(done.stderr.strip())
    return [item for item in yaml.safe_load_all(done.stdout) if item]


def _dump(items: Iterable[Manifest]) -> str:
    return "---\n".join(yaml.safe_dump(item, sort_keys=False, width=120) for item in items)


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")
