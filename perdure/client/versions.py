"""Deployment versions: where the server sends the tasks of a turn, which versions poll its queue, and how it is moved.

Source: https://docs.temporal.io/worker-versioning
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from temporalio.api.deployment.v1 import WorkerDeploymentOptions, WorkerDeploymentVersion
from temporalio.api.enums.v1 import VersioningBehavior, WorkerVersioningMode
from temporalio.api.taskqueue.v1 import PollerInfo
from temporalio.api.workflow.v1 import WorkflowExecutionVersioningInfo
from temporalio.api.workflowservice.v1 import DescribeTaskQueueResponse

POLLER_AGE = timedelta(seconds=75)
"""A worker asks for work at least every 60 seconds; one that has not for longer is gone."""

UNVERSIONED = "no deployment version"
"""Name of what workers without a version have."""


@dataclass(frozen=True, order=True)
class Version:
    """A version of a worker deployment."""

    deployment: str
    build: str

    @classmethod
    def of(cls, told: WorkerDeploymentVersion | WorkerDeploymentOptions) -> "Version | None":
        """The version that a message names; None if it names none."""
        return cls(told.deployment_name, told.build_id) if told.deployment_name and told.build_id else None

    @property
    def flags(self) -> str:
        """The two options by which Temporal's command line knows it."""
        return f"--deployment-name {self.deployment} --build-id {self.build}"

    def __str__(self) -> str:
        return f"{self.deployment}.{self.build}"


@dataclass(frozen=True)
class QueueVersions:
    """The versions of a task queue.

    Attributes:
        current: The version that new turns go to, and those that move with their next task; None before any is current:
            these then go to workers without a version.
        ramping: The version that a share of them goes to.
        polling: The versions that poll; None stands for workers without one.
    """

    current: Version | None
    ramping: Version | None
    polling: frozenset[Version | None]

    @classmethod
    def of(cls, described: DescribeTaskQueueResponse, now: datetime) -> "QueueVersions":
        """The versions of a queue."""
        info = described.versioning_info
        polling = frozenset(
            _version_of(poller)
            for poller in described.pollers
            if now - poller.last_access_time.ToDatetime(UTC) <= POLLER_AGE
        )
        current = Version.of(info.current_deployment_version)
        return cls(current, Version.of(info.ramping_deployment_version), polling)

    def others(self, version: Version | None) -> list[Version]:
        """The versions that poll beside this one, in order."""
        return sorted(each for each in self.polling if each is not None and each != version)


@dataclass(frozen=True)
class Bound:
    """The version to which the server sends the tasks of a turn.

    Attributes:
        version: The version; None means workers without one.
        is_pinned: Whether the turn stays on it whatever is current.
    """

    version: Version | None
    is_pinned: bool

    @property
    def name(self) -> str:
        """Its name for people."""
        return UNVERSIONED if self.version is None else f"version {self.version}"


def bound_of(told: WorkflowExecutionVersioningInfo, queue: QueueVersions) -> Bound:
    """The version of a turn, by what Temporal tells of its workflow and of its task queue."""
    override = told.versioning_override
    if override.HasField("pinned"):
        return Bound(Version.of(override.pinned.version), is_pinned=True)
    is_pinned = told.behavior == VersioningBehavior.VERSIONING_BEHAVIOR_PINNED
    if is_pinned and not override.auto_upgrade:
        return Bound(Version.of(told.deployment_version), is_pinned=True)
    moving = Version.of(told.version_transition.deployment_version)
    return Bound(moving or queue.current, is_pinned=False)


def move_command(session: str, version: Version | None) -> str:
    """The command that moves a running turn to a version; without one it has placeholders."""
    deployment, build = ("DEPLOYMENT", "BUILD") if version is None else (version.deployment, version.build)
    return (
        f"'temporal workflow update-options --workflow-id {session} --versioning-override-behavior pinned "
        f"--versioning-override-deployment-name {deployment} --versioning-override-build-id {build}'"
    )


def current_command(version: Version) -> str:
    """The command that makes a version current."""
    return f"'temporal worker deployment set-current-version {version.flags}'"


def worker_of(version: Version | None) -> str:
    """The settings of a worker of a version."""
    if version is None:
        return "without PERDURE_DEPLOYMENT"
    return f"with PERDURE_DEPLOYMENT={version.deployment} and PERDURE_BUILD_ID={version.build}"


def name_versions(versions: Iterable[Version | None]) -> str:
    """The versions in a sentence."""
    return ", ".join(UNVERSIONED if each is None else str(each) for each in versions)


def _version_of(poller: PollerInfo) -> Version | None:
    options = poller.deployment_options
    is_versioned = options.worker_versioning_mode == WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED
    return Version.of(options) if is_versioned else None
