"""deploy/compose.yaml names what there is, is open to this machine alone, and gives perdure's processes few rights."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from perdure.cli.server import DYNAMIC_CONFIG
from perdure.cli.worker import STOP_MARGIN
from perdure.settings import Settings
from tests.compose import FILE, IMAGE, UnsetVariableError, load, seconds
from tests.contract.repository import ROOT
from tests.contract.test_manifests import assert_exists

NEEDED = {"POSTGRES_PASSWORD": "pw", "GRAFANA_PASSWORD": "pw"}
COMPOSE = load(NEEDED)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == IMAGE}

KEYS = {
    "image", "init", "read_only", "tmpfs", "cap_drop", "security_opt", "restart", "stop_grace_period", "environment",
    "command", "entrypoint", "volumes", "healthcheck", "depends_on", "ports", "configs", "secrets", "deploy",
}  # fmt: skip
"""The keys of https://github.com/compose-spec/compose-spec/blob/main/05-services.md that the file uses."""


def mounts() -> Iterator[tuple[str, str]]:
    """The source of each volume of each service."""
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            yield name, volume.split(":")[0]


def test_it_runs_what_a_fleet_needs() -> None:
    assert set(SERVICES) == {
        *("postgres", "temporal-schema", "temporal", "temporal-namespace", "temporal-ui"),
        *("migrate", "worker", "gateway", "prometheus", "grafana"),
    }
    assert set(OURS) == {"migrate", "worker", "gateway"}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_known_keys_and_a_version(name: str) -> None:
    service = SERVICES[name]
    assert service.keys() <= KEYS
    if name not in OURS:
        assert re.fullmatch(r"[\w/-]+:v?\d+(\.\d+)+", service["image"])
    assert all(value is None or isinstance(value, str) for value in service.get("environment", {}).values())


def test_nothing_waits_for_what_is_not_there() -> None:
    for service in SERVICES.values():
        waits = service.get("depends_on", {})
        for name, wait in waits.items() if isinstance(waits, dict) else ((name, {}) for name in waits):
            condition = wait.get("condition", "service_started")
            assert condition in {"service_started", "service_healthy", "service_completed_successfully"}
            assert condition != "service_healthy" or "healthcheck" in SERVICES[name]
            assert condition != "service_completed_successfully" or SERVICES[name].get("restart") != "unless-stopped"


def test_what_is_mounted_is_there() -> None:
    for name, source in mounts():
        if source.startswith("."):
            assert (FILE.parent / source).exists(), name
        else:
            assert source in COMPOSE["volumes"]
    for service in SERVICES.values():
        assert set(service.get("secrets", [])) <= COMPOSE["secrets"].keys()
        assert {config["source"] for config in service.get("configs", [])} <= COMPOSE["configs"].keys()


def test_prometheus_looks_for_services_that_are_there() -> None:
    """It knows names of roles too, which a fleet of Compose that is not split has not."""
    told = yaml.safe_load((FILE.parent / "prometheus/prometheus.yml").read_text(encoding="utf-8"))
    jobs = {job["job_name"]: job["dns_sd_configs"][0]["names"] for job in told["scrape_configs"]}
    assert jobs["perdure-gateway"] == ["gateway"]
    assert "worker" in jobs["perdure-worker"]


def test_only_this_machine_reaches_it() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


@pytest.mark.parametrize("name", OURS)
def test_perdure_has_few_rights_and_time_to_drain(name: str) -> None:
    service = OURS[name]
    assert (service["read_only"], service["cap_drop"], service["tmpfs"]) == (True, ["ALL"], ["/tmp"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    told = float(service["environment"]["PERDURE_SHUTDOWN_GRACE"])
    assert seconds(service["stop_grace_period"]) == told + STOP_MARGIN.total_seconds()
    ours = {variable for variable in service["environment"] if variable.startswith("PERDURE_")}
    assert ours <= {f"PERDURE_{field}".upper() for field in Settings.model_fields}
    command = service["command"]
    assert_exists(command)


def test_a_missing_password_is_said_in_a_line() -> None:
    for name in NEEDED:
        with pytest.raises(UnsetVariableError, match=f"write {name} into deploy/.env"):
            load({other: value for other, value in NEEDED.items() if other != name})


def test_the_example_of_variables_has_what_is_needed_and_no_values_of_it() -> None:
    example = (ROOT / "deploy/.env.example").read_text(encoding="utf-8")
    told = dict(re.findall(r"^([A-Z_]+)=(.*)$", example, flags=re.MULTILINE))
    assert NEEDED.keys() <= told.keys()
    assert set(told.values()) == {""}
    assert set(re.findall(r"^#?([A-Z_]+)=", example, flags=re.MULTILINE)) <= set(
        re.findall(r"[A-Z][A-Z_]+", FILE.read_text(encoding="utf-8"))
    )
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert {"deploy/.env", COMPOSE["secrets"]["gateway-tokens"]["file"].replace("./", "deploy/")} <= set(ignored)


def test_the_server_is_as_quick_as_that_of_dev() -> None:
    told = yaml.safe_load(COMPOSE["configs"]["temporal-server"]["content"])
    for name, (constraint,) in told.items():
        assert str(constraint["value"]) == DYNAMIC_CONFIG[name].strip('"')
