"""The agents of a worker that is about to start: loaded in a process of their own, told, and looked at for keys."""

import asyncio
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perdure.cli.errors import CliError, ExitCode
from perdure.cli.provider_keys import USUAL_KEYS
from perdure.cli.worker_process import LAST_LINES, READY_TIMEOUT, plain_line


@dataclass(frozen=True, kw_only=True)
class LoadedAgent:
    """What is told of an agent.

    Attributes:
        servers: Number of its MCP servers.
        models_without_key: Its models, those that stand in for the first included, that take the provider's usual key.
        unset: Variables that its settings refer to and that are not set.
    """

    name: str
    model: str
    tools: int
    servers: int
    models_without_key: Sequence[str]
    unset: Sequence[str]

    def line(self) -> str:
        """The agent as one line."""
        servers = [_counted(self.servers, "MCP server")] if self.servers else []
        return " · ".join([self.name, self.model, _counted(self.tools, "tool"), *servers])


def _counted(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


async def load_agents(command: Sequence[str], environment: Mapping[str, str]) -> tuple[LoadedAgent, ...]:
    """Load the agents as the worker will.

    Raises:
        CliError: They cannot be loaded; the message is the worker's own.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        "--describe",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        start_new_session=True,  # so that Ctrl+C does not reach it
    )
    try:
        async with asyncio.timeout(READY_TIMEOUT.total_seconds()):
            said, complaint = await process.communicate()
    except TimeoutError:
        msg = f"the agents were not loaded within {READY_TIMEOUT.total_seconds():.0f} s; see what their modules do"
        raise CliError(msg) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    rows = [row for row in said.decode(errors="replace").splitlines() if row.strip()]
    if process.returncode == 0 and rows:
        described: list[dict[str, Any]] = json.loads(rows[-1])  # modules may print lines of their own
        return tuple(LoadedAgent(**one) for one in described)
    told = [plain_line(row) for row in complaint.decode(errors="replace").splitlines() if row.strip()]
    if told and told[-1].startswith("perdure: "):
        raise CliError(told[-1].removeprefix("perdure: "), process.returncode or ExitCode.ERROR)
    raise CliError(f"the agents cannot be loaded: {' | '.join(told[-LAST_LINES:]) or 'no word of why'}")


def missing_keys(agents: Sequence[LoadedAgent], environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """A sentence for each key or variable that agents need and that is not set."""
    users: dict[str, list[str]] = {}
    for agent in agents:
        for model in agent.models_without_key:
            names = USUAL_KEYS.get(model.partition("/")[0], ())
            if names and not any(environment.get(name) for name in names):
                users.setdefault(f"{' or '.join(names)} for {model}", []).append(agent.name)
        for name in agent.unset:
            users.setdefault(name, []).append(agent.name)
    for needed, agents_of in users.items():
        yield f"{needed} (agent {', '.join(dict.fromkeys(agents_of))}) is not set"
