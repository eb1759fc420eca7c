"""``perdure worker``: a worker for a cluster, as a child process."""

import os
from pathlib import Path

import click

from perdure.cli.child import (
    exit_code,
    passing_signals,
    record_option,
    recording_settings,
    replay_option,
    variables,
    worker_command,
)
from perdure.cli.server import spawn


@click.command("worker")
@click.option("--agents", multiple=True, metavar="MODULE", help="A module or file with agents; may be given again.")
@click.option("--task-queue", metavar="Q", help="The task queue to poll, instead of PERDURE_TASK_QUEUE.")
@click.option("--metrics-address", metavar="HOST:PORT", help="Where /metrics, /healthz and /readyz are served.")
@record_option
@replay_option
@click.pass_context
def command(
    ctx: click.Context,
    *,
    agents: tuple[str, ...],
    task_queue: str | None,
    metrics_address: str | None,
    record: Path | None,
    replay: Path | None,
) -> None:
    """Run a worker until it is told to stop; SIGTERM lets running calls finish.

    The server's address comes from TEMPORAL_ADDRESS or a Temporal profile, all else from PERDURE_*.
    """
    changes = variables(recording_settings(record, replay))
    if task_queue is not None:
        changes["PERDURE_TASK_QUEUE"] = task_queue
    if metrics_address is not None:
        changes["PERDURE_METRICS_ADDRESS"] = metrics_address
    process = spawn(worker_command(agents), output=None, env={**os.environ, **changes})
    with passing_signals(process):
        ctx.exit(exit_code(process.wait()))
