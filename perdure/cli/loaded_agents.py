"""The agents of a worker that is about to start: loaded in a process of their own, named, and looked at for keys."""

import asyncio
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perdure.cli.errors import CliError, ExitCode
from perdure.cli.worker import LAST_LINES, READY_TIMEOUT, plain_line

USUAL_KEYS: dict[str, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_API_KEY",),
    "azure": ("AZURE_API_KEY",),
    "bedrock": ("AWS_ACCESS_KEY_ID",),
    "cerebras": ("CEREBRAS_API_KEY",),
    "cohere": ("COHERE_API_KEY",),
    "deepseek": ("DEEPSEEK_API_KEY",),
    "fireworks_ai": ("FIREWORKS_AI_API_KEY",),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "groq": ("GROQ_API_KEY",),
    "huggingface": ("HUGGINGFACE_API_KEY",),
    "mistral": ("MISTRAL_API_KEY",),
    "nvidia_nim": ("NVIDIA_NIM_API_KEY",),
    "openai": ("OPENAI_API_KEY",),
    "openrouter": ("OPENROUTER_API_KEY",),
    "perplexity": ("PERPLEXITYAI_API_KEY",),
    "replicate": ("REPLICATE_API_KEY",),
    "together_ai": ("TOGETHERAI_API_KEY",),
    "xai": ("XAI_API_KEY",),
}
"""The variables litellm reads the key of a provider from; any one of them will do."""


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
        servers = [_count_of(self.servers, "MCP server")] if self.servers else []
        return " · ".join([self.name, self.model, _count_of(self.tools, "tool"), *servers])


def _count_of(number: int, what: str) -> str:
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
