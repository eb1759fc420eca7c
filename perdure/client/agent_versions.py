"""Versions of agents: which of them the workers have that poll now, beside the one that was registered last."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perdure.client.worker_stores import WorkerStore
from perdure.store.records import RegisteredAgent


@dataclass(frozen=True, kw_only=True)
class AgentVersion:
    """A version of an agent.

    Attributes:
        agent: The agent's last registration, which may be of another version.
        definition: The digest of this version's definition.
        workers: The workers that have it, as ``PID@HOST``; None if they do not say.
        builds: Their builds, as far as they have any.
    """

    agent: RegisteredAgent
    definition: str
    workers: tuple[str, ...] | None
    builds: tuple[str, ...] = ()


def find_versions(
    agents: Sequence[RegisteredAgent], kept: Mapping[str, Sequence[str]], told: Sequence[WorkerStore]
) -> list[AgentVersion]:
    """Find the versions of each agent that workers have; the one that was registered last if none has any.

    Args:
        agents: The agents that are registered.
        kept: The digests of the definitions of each name, the newest first.
        told: What the workers of the store tell of themselves.
    """
    all_tell = bool(told) and all(worker.versions is not None for worker in told)
    found: list[AgentVersion] = []
    for agent in agents:
        having = {
            digest: [worker for worker in told if worker.has_version(digest)] for digest in kept.get(agent.name, ())
        }
        polled = [_version_of(agent, digest, workers) for digest, workers in having.items() if workers]
        nobody = AgentVersion(agent=agent, definition=agent.definition, workers=() if all_tell else None)
        found += polled or [nobody]
    return found


def _version_of(agent: RegisteredAgent, digest: str, workers: Sequence[WorkerStore]) -> AgentVersion:
    builds = sorted({worker.build for worker in workers if worker.build})
    names = tuple(sorted(worker.worker for worker in workers))
    return AgentVersion(agent=agent, definition=digest, workers=names, builds=tuple(builds))
