"""The instructions of a turn: made when it opens, from the turn's context, and frozen with its definition."""

from datetime import timedelta

from temporalio import activity

from perdure.activities.bodies import Bodies, within
from perdure.activities.errors import permanent, runtime_error
from perdure.activities.failures import redact
from perdure.agents.agent import Agent, cleaned
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import ReasonCode
from perdure.contracts.turn_context import TurnContext
from perdure.contracts.turns import MAX_DEFINITION_BYTES
from perdure.engine.instructions import PlaceholderError, fill_in

LONGEST = timedelta(seconds=30)
"""How long a function may take to make instructions."""

ERROR_CHARACTERS = 500


class Instructions:
    """Makes the instructions of one worker's turns."""

    def __init__(self, bodies: Bodies, secrets: frozenset[str]) -> None:
        self._bodies = bodies
        self._secrets = secrets

    async def made(self, definition: AgentDefinition, agent: Agent | None, context: TurnContext) -> AgentDefinition:
        """The definition with the instructions of a turn of that context.

        Raises:
            ApplicationError: They cannot be made: a placeholder stands for nothing, or the function failed.
        """
        if agent is None:
            return definition
        try:
            if isinstance(agent.instructions, str):
                text = fill_in(definition.instructions, context)
            else:
                text = await self._called(agent, context)
        except PlaceholderError as error:
            message = f"the instructions of agent {definition.name!r} {error}"
            raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, message)) from None
        except Exception as error:  # noqa: BLE001 - the edge: it is the author's code
            said = redact(str(error), self._secrets)[:ERROR_CHARACTERS] or "no message"
            message = f"the instructions of agent {definition.name!r} could not be made: {type(error).__name__}: {said}"
            activity.logger.warning("%s", message, exc_info=True)
            raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, message)) from None
        return definition.model_copy(update={"instructions": text})

    async def _called(self, agent: Agent, context: TurnContext) -> str:
        """The text that the agent's function gives, within its time."""
        assert callable(agent.instructions), "any other instructions are a text"  # noqa: S101 - narrows the type
        limit = LONGEST.total_seconds()
        body = self._bodies.start_function(agent.instructions, [context])
        late = TimeoutError(f"the function ran longer than {limit:g} s")
        given = await within(body, limit, who="the function", late=late, give_up=lambda: None)
        if not isinstance(given, str):
            msg = f"the function returned a {type(given).__name__}; return a text"
            raise TypeError(msg)
        if len(given.encode()) > MAX_DEFINITION_BYTES:
            msg = f"the text is {len(given.encode()):,} bytes, the limit is {MAX_DEFINITION_BYTES:,}"
            raise ValueError(msg)
        return cleaned(given)
