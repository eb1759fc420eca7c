"""A real Prometheus that scrapes a fleet, with the rules of deploy/ in a time of its own."""

import asyncio
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from perdure.cli.server import spawn, stop_process
from perdure.local_ports import find_free_port
from tests.contract.repository import ROOT
from tests.house import eventually

RULES = ROOT / "deploy/prometheus/rules"
CONFIGURATION = ROOT / "deploy/prometheus/prometheus.yml"

FASTER = 60
"""An hour of the rules is a minute here: each duration of a rule, and each number of seconds, is divided by this."""

INTERVAL = "2s"
"""Between two scrapes: two in the shortest window. A page may take as long, on a machine that has other work."""

FIRES_WITHIN = 90.0
"""Upper bound of the wait for an alert: the longest window and its ``for``, on a busy machine."""

PATIENT = {"PerdureCancelSlow": 10}
"""Alerts whose numbers of seconds are divided by less: on a busy machine half a second is too little for a cancel."""

SHORTEST_FOR = 15_000
"""Milliseconds: no ``for`` gets shorter, because a machine with other work may answer no scrape for some seconds."""

OWN = {
    "perdure:objective:usd_per_hour": "vector(0.01)",
    "perdure:objective:person_seconds": "vector(3)",
    "perdure:objective:turn_seconds": "vector(10)",
}
"""What a team sets for itself; this one is impatient and poor."""

_DURATION = re.compile(r"(?<=\[)(\d+)([smhd])(?=\])|(?<=offset )(\d+)([smhd])")
_SECONDS = re.compile(r"\b(\d+(?:\.\d+)?) \* (60|3600)\b")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def faster(text: str, times: int = FASTER) -> str:
    """An expression with shorter windows and offsets, and numbers of seconds that are divided by ``times``."""

    def shorter(found: re.Match[str]) -> str:
        number, unit = (found[1], found[2]) if found[1] else (found[3], found[4])
        return f"{int(number) * _UNITS[unit] * 1000 // FASTER}ms"

    return _SECONDS.sub(lambda found: str(float(found[1]) * int(found[2]) / times), _DURATION.sub(shorter, text))


def faster_rules(file: Path) -> dict[str, Any]:
    """A file of rules in this time, with what this team sets for itself."""
    rules: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    for group in rules["groups"]:
        group.pop("interval", None)  # the configuration's is shorter in this time
        for rule in group["rules"]:
            rule["expr"] = OWN.get(
                rule.get("record", ""), faster(rule["expr"], PATIENT.get(rule.get("alert", ""), FASTER))
            )
            for name in {"for", "keep_firing_for"} & rule.keys():
                number, unit = int(rule[name][:-1]), rule[name][-1]
                rule[name] = f"{max(number * _UNITS[unit] * 1000 // FASTER, SHORTEST_FOR)}ms"
    return rules


def configuration(folder: Path, targets: Mapping[str, Sequence[str]], *, as_deployed: bool = False) -> Path:
    """The configuration of deploy/ with targets in place of names of DNS; unless as deployed, in this time."""
    (folder / "rules").mkdir()
    for file in RULES.glob("*.yml"):
        rules = yaml.safe_load(file.read_text(encoding="utf-8")) if as_deployed else faster_rules(file)
        (folder / "rules" / file.name).write_text(yaml.safe_dump(rules, sort_keys=False))
    made = yaml.safe_load(CONFIGURATION.read_text(encoding="utf-8"))
    if not as_deployed:
        made["global"] = {"scrape_interval": INTERVAL, "evaluation_interval": "1s"}
    for job in made["scrape_configs"]:
        del job["dns_sd_configs"]
        if not as_deployed:
            job["scrape_timeout"] = INTERVAL
        job["static_configs"] = [{"targets": [*targets[job["job_name"]]]}]
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(made))
    return path


@dataclass
class Prometheus:
    """A Prometheus that runs."""

    http: httpx.AsyncClient

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """What an expression gives now."""
        answer = (await self.http.get("/api/v1/query", params={"query": expression})).json()
        assert answer["status"] == "success", f"{expression}: {answer}"
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    async def series(
        self, expression: str, start: float, end: float, step: int
    ) -> list[tuple[dict[str, str], list[tuple[float, str]]]]:
        """The series of an expression between two times of the epoch: their labels and samples."""
        asked: dict[str, str | float] = {"query": expression, "start": start, "end": end, "step": step}
        answer = (await self.http.get("/api/v1/query_range", params=asked)).json()
        assert answer["status"] == "success", f"{expression}: {answer}"
        return [(found["metric"], [*map(tuple, found["values"])]) for found in answer["data"]["result"]]

    async def wait_for_silence(self, instance: str, since: float) -> None:
        """Wait until a target has left a scrape unanswered that began ``since`` then, in seconds of the epoch."""
        up = f'up{{instance="{instance}"}}'
        await eventually(lambda: self.query(f"{up} == 0 and timestamp({up}) > {since}"))

    async def firing(self) -> set[str]:
        """The names of the alerts that fire now."""
        return {alert["alertname"] for alert in await self.alerts()}

    async def alerts(self) -> list[Mapping[str, str]]:
        """The labels of the alerts that fire now."""
        alerts = (await self.http.get("/api/v1/alerts")).json()["data"]["alerts"]
        return [alert["labels"] for alert in alerts if alert["state"] == "firing"]

    async def fired(self) -> list[Mapping[str, str]]:
        """The labels of every alert that has fired so far; in this time many are soon over."""
        return [found["metric"] for found in await self.query('count_over_time(ALERTS{alertstate="firing"}[1h])')]

    async def wait_for_alert(self, name: str, **labels: str) -> None:
        """Wait until an alert has fired that has these labels."""
        wanted = {"alertname": name, **labels}.items()

        async def fires() -> bool:
            return any(wanted <= found.items() for found in await self.fired())

        try:
            await eventually(fires, FIRES_WITHIN)
        except TimeoutError:
            now = await self.query("ALERTS")
            page = (await self.http.get("/api/v1/targets", params={"state": "active"})).text
            pytest.fail(f"{name} {labels} does not fire; fired have {await self.fired()}; now {now}; {page}")


def program_or_skip(name: str) -> str:
    """The path of a program of Debian's package prometheus."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed; it is in Debian's package prometheus")
    return found


@asynccontextmanager
async def prometheus(
    folder: Path, targets: Mapping[str, Sequence[str]], *, as_deployed: bool = False
) -> AsyncIterator[Prometheus]:
    """A Prometheus that scrapes these targets, by their jobs."""
    program, port = program_or_skip("prometheus"), find_free_port()
    path, log = configuration(folder, targets, as_deployed=as_deployed), folder / "prometheus.log"
    command = [program, f"--config.file={path}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    command += [] if as_deployed else ["--query.lookback-delta=5s"]
    with log.open("wb") as output:
        process = spawn(command, output=output)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:

            async def ready() -> bool:
                if process.poll() is not None:
                    pytest.fail(f"prometheus ended with {process.returncode}: {log.read_text()}")
                try:
                    return (await http.get("/-/ready")).status_code == httpx.codes.OK
                except httpx.TransportError:
                    return False

            await eventually(ready)
            yield Prometheus(http)
    finally:
        await stop_process(process)


async def run_program(*command: str) -> tuple[int, str]:
    """A program's exit code and what it writes."""
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()
