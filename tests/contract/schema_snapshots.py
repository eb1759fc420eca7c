"""The JSON schemas of what crosses a process, and how they are written: ``make schemas``.

Requests are described as they are accepted, everything else as it is written.
"""

import json
from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from perdure.contracts import (
    agents,
    budgets,
    checkpoints,
    errors,
    events,
    input_requests,
    names,
    retries,
    schedules,
    sends,
    turns,
    webhooks,
)
from perdure.contracts.values import JsonValue

FOLDER = Path(__file__).parent / "schemas"

REQUESTS: tuple[type[BaseModel], ...] = (
    turns.TurnRequest,
    turns.Continuation,
    sends.SendRequest,
    turns.CancelRequest,
    input_requests.AnswerRequest,
    input_requests.ApproveRequest,
    input_requests.DenyRequest,
    budgets.ExtendRequest,
    webhooks.WebhookRequest,
    schedules.ScheduleRequest,
    schedules.Knock,
    webhooks.Notify,
)
RESULTS: tuple[type[BaseModel], ...] = (
    turns.TurnResult,
    sends.SendReceipt,
    turns.CancelReceipt,
    input_requests.InputReceipt,
    turns.TurnStatus,
    turns.BudgetStatus,
    checkpoints.Checkpoint,
    events.Envelope,
    agents.AgentDefinition,
    retries.RetryPolicy,
    errors.ErrorDetail,
    webhooks.NewWebhook,
    schedules.Schedule,
    schedules.ScheduleRun,
    schedules.Knocked,
    webhooks.Delivery,
)
NAMES: tuple[type[StrEnum], ...] = (
    names.Activity,
    names.Signal,
    names.Update,
    names.Query,
    names.SearchAttribute,
    names.Metric,
    turns.StopReason,
    checkpoints.CheckpointStatus,
    checkpoints.JobStatus,
    errors.ReasonCode,
    webhooks.WebhookEvent,
)


def snapshots() -> dict[str, str]:
    """The text of every snapshot, by file name."""
    texts: dict[str, JsonValue] = {"names": {enum.__name__: [member.value for member in enum] for enum in NAMES}}
    for mode, models in _modes():
        texts |= {model.__name__: model.model_json_schema(mode=mode) for model in models}
    return {f"{name}.json": json.dumps(value, indent=2, ensure_ascii=False) + "\n" for name, value in texts.items()}


def _modes() -> tuple[tuple[Literal["validation", "serialization"], tuple[type[BaseModel], ...]], ...]:
    return (("validation", REQUESTS), ("serialization", RESULTS))


def main() -> None:
    """Rewrite the folder."""
    wanted = snapshots()
    for path in FOLDER.glob("*.json"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
