"""The agents of one worker: those it has loaded, and those that come whole in start requests, if it takes any."""

from collections import OrderedDict
from collections.abc import Mapping

from perdure.activities.errors import permanent, runtime_error
from perdure.agents.agent import Agent, AgentDefinitionError
from perdure.agents.inline import InlineAgents
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import ReasonCode
from perdure.contracts.turns import TurnRequest
from perdure.contracts.values import JsonValue

KEPT = 256
"""Agents of requests that are kept in memory; one is needed for each that has running turns."""

NOT_ALLOWED = (
    "definition: this worker takes no agents from start requests; start one that it has by its name, "
    "or set PERDURE_ALLOW_INLINE_AGENTS=1 for the worker"
)


class Roster:
    """Which agent a definition was made of."""

    def __init__(self, agents: Mapping[str, Agent], inline: InlineAgents | None) -> None:
        self._agents = agents
        self._inline = inline
        self._made: OrderedDict[str, Agent] = OrderedDict()

    def of(self, definition: AgentDefinition) -> Agent | None:
        """The agent with the bodies of its tools; None if this worker has none, or not any more."""
        if definition.inline is None:
            return self._agents.get(definition.name)
        digest = definition.digest()
        made = self._made.get(digest)
        if made is None:
            try:
                made = self._inline.agent(definition.inline) if self._inline is not None else None
            except AgentDefinitionError:
                return None
            if made is None:
                return None
            self._made[digest] = made
            while len(self._made) > KEPT:
                self._made.popitem(last=False)
        return made

    def named(self, name: str, before: AgentDefinition | None) -> AgentDefinition:
        """The definition of an agent as it is now; ``before`` is the one that the session went by last.

        Raises:
            ApplicationError: There is no such agent.
        """
        agent = self._agents.get(name)
        if agent is not None:
            return agent.definition
        if before is not None and before.name == name and before.inline is not None:
            return self._described(before.inline)
        known = ", ".join(sorted(self._agents)) or "none"
        message = f"no agent is named {name!r}; this worker has: {known}"
        raise permanent(runtime_error(ReasonCode.REQUEST_UNKNOWN_AGENT, message))

    def described(self, request: TurnRequest) -> AgentDefinition | None:
        """The definition that a request brings; None if it names an agent.

        Raises:
            ApplicationError: It is none that this worker may run.
        """
        fields = request.definition
        if fields is None:
            return None
        if request.agent is not None:  # it may stand beside the object
            fields = {"name": request.agent, **fields}
        if request.agent is not None and request.agent != fields.get("name"):
            message = f"definition: it is of {fields['name']!r}, and agent says {request.agent!r}; leave agent out"
            raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, message))
        return self._described(fields)

    def _described(self, fields: dict[str, JsonValue]) -> AgentDefinition:
        if self._inline is None:
            raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, NOT_ALLOWED))
        try:
            agent = self._inline.agent(fields)
        except AgentDefinitionError as error:
            raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, f"definition: {error}")) from None
        return agent.definition.model_copy(update={"inline": fields})
