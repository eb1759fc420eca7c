"""Requests that cannot be asked of a session as it stands."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime

from perdure.client import RequestRefusedError
from perdure.client.views import SessionView
from perdure.contracts.input_requests import Need
from perdure.contracts.tool_choice import NamedTool
from perdure.gateway.doors.responses.events import TurnFold
from perdure.gateway.doors.responses.objects import APPROVAL
from perdure.gateway.doors.responses.places import wire_call
from perdure.gateway.doors.responses.requests import Asked


def refuse_others(asked: Asked, fold: TurnFold) -> None:
    """Refuse another agent, functions or form of answers beside a reply: the turn that waits goes on as it began.

    Raises:
        RequestRefusedError: There are.
    """
    if fold.prompt is None:
        return
    instead = "to hand the conversation over, end this turn, and send a message of the user"
    if asked.model not in {None, fold.prompt.agent}:
        agent = fold.prompt.agent
        raise RequestRefusedError(f"model: the turn that waits is of {agent!r}, which goes on with it; {instead}")
    wanted = asked.settings.output_schema
    if wanted is not None and wanted != fold.shape.output_schema:
        raise RequestRefusedError(f"text: the turn that waits began without this format; {instead}")
    choice = asked.settings.tool_choice
    if isinstance(choice, NamedTool) and fold.shape.names and choice.name not in fold.shape.names:
        raise RequestRefusedError(f"tool_choice: the turn that waits has no tool {choice.name!r}; {instead}")
    if more := {str(tool["name"]) for tool in asked.tools} - {str(tool["name"]) for tool in fold.shape.tools}:
        raise RequestRefusedError(f"tools: the turn that waits began without {min(more)!r}; {instead}")


def refuse_unknown_choice(asked: Asked, fold: TurnFold) -> None:
    """Refuse the choice of a tool that the turn which replies begin will not have, as far as that is known.

    Raises:
        RequestRefusedError: It will not.
    """
    choice, names = asked.settings.tool_choice, {*fold.shape.names}
    if not isinstance(choice, NamedTool) or not names or (fold.prompt and asked.model not in {None, fold.prompt.agent}):
        return
    if asked.tools:
        names -= {str(tool["name"]) for tool in fold.shape.tools}
        names |= {str(tool["name"]) for tool in asked.tools}
    if choice.name not in names:
        raise RequestRefusedError(
            f"tool_choice: there is no tool {choice.name!r}; there are {', '.join(sorted(names))}"
        )


def lacking(view: SessionView, needs: AbstractSet[Need]) -> "WaitsError | None":
    """The refusal of a message while requests with such needs are open; None if none are."""
    now = datetime.now(UTC)
    found = [one for one in view.requests if one.needs in needs and (one.expires_at is None or one.expires_at > now)]
    if not found:
        return None
    return WaitsError(found[0].session, found[0].turn, {one.request_id: one.needs for one in found})


class WaitsError(RequestRefusedError):
    """A message came while a turn waits; the text has the ids that its client has.

    Attributes:
        needs: What is waited for, by the ids of the calls.
    """

    def __init__(self, session: str, turn: int, needs: Mapping[str, Need]) -> None:
        missing = [
            f"decision found for {APPROVAL}{wire}" if need == "approval" else f"output found for {wire}"
            for name, need in needs.items()
            if (wire := wire_call(session, turn, name))
        ]
        super().__init__(f"input: no {', no '.join(missing)}; the turn waits for it, so send it before a message")
        self.session, self.turn, self.needs = session, turn, needs


def refuse_beside(why: str, **fields: object) -> RequestRefusedError | None:
    """The refusal of the first of these fields that has a value, beside a message; None if none has."""
    name = next((name for name, value in fields.items() if value), None)
    if name is None:
        return None
    return RequestRefusedError(f"{name}: a message that {why} cannot bring any; leave it out")
