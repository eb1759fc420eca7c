"""``python -m benchmarks.sizing``: what a step asks of Temporal, PostgreSQL and a worker, for docs/sizing.md."""

import argparse
import asyncio
import json
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import psycopg
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.bench import turn
from benchmarks.stage import Process, staged
from perdure.local_ports import find_free_port
from tests.postgresql import start_postgresql, url_of

QUIET = 30.0
"""Seconds in which an idle worker is watched."""

Figures = dict[str, float]


def requests_of(address: str) -> Figures:
    """What a worker has asked of Temporal, by operation, long polls among them."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as page:
        text = page.read().decode()
    counted: Figures = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in {"temporal_request_total", "temporal_long_request_total"}:
                operation = sample.labels["operation"]
                counted[operation] = counted.get(operation, 0) + sample.value
    return counted


def database(url: str) -> Figures:
    """PostgreSQL's own counters, and the connections of everybody but this one."""
    with psycopg.connect(url, autocommit=True) as connection:

        def ask(query: str) -> float:
            row = connection.execute(query).fetchone()
            return float(row[0]) if row is not None else 0.0

        return {
            "wal_bytes": ask("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')"),
            "transactions": ask("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"),
            "bytes": ask("SELECT pg_database_size(current_database())"),
            "connections": ask(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ),
        }


def difference(after: Figures, before: Figures, by: float) -> Figures:
    """What has been added, divided."""
    return {name: round((value - before.get(name, 0)) / by, 3) for name, value in after.items()}


async def measured(jobs: int, steps: int) -> dict[str, Any]:
    """One worker: idle, then jobs side by side."""
    postgresql = start_postgresql()
    try:
        url = url_of(postgresql)
        with tempfile.TemporaryDirectory(prefix="perdure-sizing-") as folder:
            async with staged(Path(folder)) as stage:
                address = f"127.0.0.1:{find_free_port()}"
                stage.environment |= {"PERDURE_STORE_URL": url, "PERDURE_METRICS_ADDRESS": address}
                nobody = (await asyncio.to_thread(database, url))["connections"]
                worker = await stage.worker()
                await turn(stage, "warm", "steps=20")
                idle = await watched(worker, address)
                before, asked = await asyncio.to_thread(database, url), requests_of(address)
                cpu, began = worker.cpu_seconds(), time.monotonic()
                running = asyncio.gather(*(turn(stage, f"job-{job}", f"steps={steps}") for job in range(jobs)))
                most = 0.0
                while not running.done():
                    most = max(most, (await asyncio.to_thread(database, url))["connections"] - nobody)
                    await asyncio.sleep(0.2)
                await running
                seconds, total = time.monotonic() - began, jobs * steps
                after, told = await asyncio.to_thread(database, url), requests_of(address)
                added = difference(after, before, total)
                return {
                    "idle": idle,
                    "steps_per_second": round(total / seconds, 1),
                    "cpu_ms_per_step": round(1000 * (worker.cpu_seconds() - cpu) / total, 1),
                    "memory_mb": round(worker.megabytes(), 1),
                    "most_connections": most,
                    "postgresql_per_step": {name: added[name] for name in ("wal_bytes", "transactions", "bytes")},
                    "temporal_per_step": difference(told, asked, total),
                }
    finally:
        postgresql.cleanup()


async def watched(worker: Process, address: str) -> dict[str, Any]:
    """What a worker without work uses, and asks for in a second."""
    asked, cpu = requests_of(address), worker.cpu_seconds()
    await asyncio.sleep(QUIET)
    return {
        "memory_mb": round(worker.megabytes(), 1),
        "cpu": round((worker.cpu_seconds() - cpu) / QUIET, 4),
        "temporal_per_second": difference(requests_of(address), asked, QUIET),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    sys.stdout.write(json.dumps(asyncio.run(measured(given.jobs, given.steps)), indent=2) + "\n")


if __name__ == "__main__":
    main()
