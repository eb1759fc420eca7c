"""The jobs that meet the faults. Each ends in exactly one way, whatever happens on the way there."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from perdure.llm.compaction import INSTRUCTIONS
from perdure.testing import ChatRequest, Reply, call, faults, say

PATIENCE = 50
"""Requests for which a model's failure lasts: longer than any run asks."""


class Drive(Protocol):
    """What a scenario may do to its session while it runs."""

    async def requested(self, index: int) -> None:
        """Wait until the model was asked for its answer of this number, counted from 0."""

    async def waits_to_retry(self) -> None:
        """Wait until Temporal waits before it sends a model call again."""

    async def cancel(self) -> None:
        """Send the signal."""

    async def send(self, prompt: str) -> None:
        """Send a message for the next turn, until it is taken."""

    async def reached(self, label: str) -> None:
        """The session has come to a boundary that no worker can see."""


async def _undisturbed(_: Drive) -> None:
    """Nothing happens to the session beside its fault."""


async def _is_cancelled(drive: Drive) -> None:
    await drive.requested(1)
    await drive.cancel()
    await drive.reached("cancel sent")


async def _is_cancelled_in_a_retry_wait(drive: Drive) -> None:
    await drive.waits_to_retry()
    await drive.reached("in retry wait")
    await drive.cancel()
    await drive.reached("cancel sent")


async def _waits_to_retry(drive: Drive) -> None:
    await drive.waits_to_retry()
    await drive.reached("in retry wait")


async def _gets_a_message(drive: Drive) -> None:
    await drive.requested(0)
    await drive.send("second")
    await drive.reached("message sent")


@dataclass(frozen=True)
class Scenario:
    """A scripted job.

    Attributes:
        replies: Of the model, over all turns.
        drive: What happens to the session from outside, whatever the fault.
        turns: How many turns it has.
        request: Fields of the request that starts it, beside agent and prompt.
    """

    replies: tuple[Reply, ...]
    drive: Callable[[Drive], Awaitable[None]] = _undisturbed
    turns: int = 1
    request: dict[str, object] = field(default_factory=dict)


PAY = call(("pay", {"amount": 7}))
PUT = call(("put", {"text": "here"}))
DONE = say("done")
LIMITED = faults.status(429, headers={"retry-after": "1.5"})
LIMITED_FOR_AN_HOUR = faults.status(429, headers={"retry-after": "200"})
REFUSED = faults.error(400, "this request is not for me")

SUMMARY = 1_000
"""The number of the answer that is a summary: it is none of the script's."""


def number(request: ChatRequest) -> int:
    """The number of the answer that is asked for, counted from 0; a summary says how many it stands for."""
    first = str(request.messages[0]["content"])
    if first.startswith(INSTRUCTIONS[:40]):
        return SUMMARY
    before = re.search(r"answered (\d+)", next(str(m["content"]) for m in request.messages if m["role"] == "user"))
    return request.index + (int(before[1]) if before else 0)


def answers(replies: tuple[Reply, ...]) -> Callable[[ChatRequest], Reply]:
    """The script as a function of the request; once the conversation is compacted, it is not too long any more."""

    def answer(request: ChatRequest) -> Reply:
        at = number(request)
        if at == SUMMARY:
            return say(f"<summary>answered {str(request.messages[1]['content']).count('[assistant]')}</summary>")
        return replies[at] if at == request.index else replies[at].model_copy(update={"faults": ()})

    return answer


SCENARIOS: dict[str, Scenario] = {
    "text": Scenario((DONE,)),
    "tools": Scenario((PUT, PAY, call(("refuse", {}), text="let me see"), DONE)),
    "parallel": Scenario((call(("pay", {"amount": 1}), ("put", {"text": "a"}), ("pay", {"amount": 2})), DONE)),
    "retry": Scenario((PAY, DONE.after(LIMITED, faults.status(503))), _waits_to_retry),
    "rotation": Scenario((PUT, PAY, PUT, PAY, PUT, PAY, PUT, PAY, DONE)),
    "cancel": Scenario((PAY, DONE.after(*[faults.hang()] * PATIENCE)), _is_cancelled),
    "cancel-in-wait": Scenario((PAY, DONE.after(*[LIMITED_FOR_AN_HOUR] * PATIENCE)), _is_cancelled_in_a_retry_wait),
    "queued": Scenario((PAY, PUT, DONE, PAY, say("done again")), _gets_a_message, turns=2),
    "error": Scenario((PUT, DONE.after(*[REFUSED] * PATIENCE))),
    "abort": Scenario((PAY, call(("fail", {})), DONE)),
    "compacted": Scenario((PUT, PAY, PUT, DONE.after(*[faults.context_overflow()] * PATIENCE))),
    "max-steps": Scenario((PAY, PUT, DONE), request={"max_steps": 2}),
}
"""By name."""
