"""The agents of one worker, and what a turn freezes of its agent: definition, instructions, skills and context.

Agents come from the worker's modules. A start request may also bring a whole agent, if the worker allows that.
"""

import json
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.errors import (
    LONGEST_MISSING_RETRY,
    error_of_missing_version,
    permanent,
    redact_and_cut,
    runtime_error,
)
from perdure.activities.heartbeat import note_spent
from perdure.activities.store_access import store_failures, write_until_stored
from perdure.activities.toolbox.runner import CallContext
from perdure.agents import skills
from perdure.agents.agent import Agent, AgentDefinitionError, dedent_instructions
from perdure.agents.context import ToolUnavailableError
from perdure.agents.data import NO_INLINE, InlineAgents, UnregisteredError
from perdure.agents.tool import Tool
from perdure.contracts.agents import AgentDefinition, Skill
from perdure.contracts.errors import ReasonCode
from perdure.contracts.events import AgentStart
from perdure.contracts.exceptions import kind_of, text_of
from perdure.contracts.plain import is_of, to_text
from perdure.contracts.tools import CallTool
from perdure.contracts.turn_context import TurnContext, describe_strange_variable, variable_of
from perdure.contracts.turns import MAX_DEFINITION_BYTES, OpenTurn
from perdure.contracts.values import JsonValue, replace
from perdure.contracts.waits import MissingVersion
from perdure.lanes.bodies import Bodies
from perdure.lanes.lanes import wait_within
from perdure.llm.instructions import PlaceholderError, fill_in
from perdure.store import Store
from perdure.store.records import TurnBefore

KEPT_AGENTS = 256
"""Agents of start requests that are kept in memory; more only cost that they are built again."""

NOT_ALLOWED = (
    "definition: this worker takes no agents from start requests; start one that it has by its name, "
    "or set PERDURE_ALLOW_INLINE_AGENTS=1 for the worker"
)


class Elsewhere(Protocol):
    """Says of other workers that poll what they tell of themselves."""

    async def has(self, agent: str) -> bool | None:
        """Whether one has the agent of a name; None if that cannot be known."""
        ...

    async def takes(self, missing: MissingVersion) -> bool:
        """Whether one says that it has what this worker lacks, and calls of the turn may go to it."""
        ...

    async def differ(self, mark: str) -> bool | None:
        """Whether one makes agents of requests of other parts than those of this mark; None if that cannot be known."""
        ...


class Nowhere:
    """A worker that no other one polls beside."""

    async def has(self, agent: str) -> bool | None:
        """No."""
        del agent
        return False

    async def takes(self, missing: MissingVersion) -> bool:
        """No."""
        del missing
        return False

    async def differ(self, mark: str) -> bool | None:
        """No."""
        del mark
        return False


class Roster:
    """Finds the agent of a definition, and the definition of an agent."""

    def __init__(
        self,
        agents: Mapping[str, Agent],
        inline: InlineAgents | None,
        definitions: "Definitions",
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._definitions = definitions
        self._agents = agents
        self._inline = inline
        self._elsewhere = elsewhere or Nowhere()
        self._made: OrderedDict[str, Agent] = OrderedDict()

    def find_agent(self, definition: AgentDefinition) -> Agent | None:
        """The agent, whose tools have bodies, of a definition; None if this worker does not have it."""
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
            while len(self._made) > KEPT_AGENTS:
                self._made.popitem(last=False)
        return made

    async def find_definition(self, name: str, source: TurnBefore | None, opening: OpenTurn) -> AgentDefinition:
        """The current definition of an agent of this worker, or the one that an earlier request of the session brought.

        Args:
            name: The agent's.
            source: The turn that the new one goes on from.
            opening: The turn that is opened.

        Raises:
            ApplicationError: This worker has no such agent. The turn waits for one that does, unless all that poll are
                known to lack it, or the turn is stopped.
        """
        agent = self._agents.get(name)
        if agent is not None:
            return agent.definition
        if source is not None and source.agent == name:
            before = await self._definitions.get(source.definition)
            if before.inline is not None:
                return await self._read_definition(before.inline, opening)
        raise await self._error_of_unknown(name, opening)

    async def _error_of_unknown(self, name: str, opening: OpenTurn) -> ApplicationError:
        delegated = opening.request.delegated
        if opening.stopped:
            return _error_of_stopped(name)
        if await self._elsewhere.has(name) is False:
            known = ", ".join(sorted(self._agents)) or "none"
            message = f"no worker that polls has an agent {name!r}; this worker has: {known}"
            return permanent(runtime_error(ReasonCode.REQUEST_UNKNOWN_AGENT, message))
        missing = MissingVersion(agent=name, what="agent", name=name)
        if delegated is not None:
            caller = (await self._definitions.get(delegated.definition)).name
            missing = MissingVersion(agent=caller, what="delegate", name=name, definition=delegated.definition)
        return await self.offer(missing)

    async def offer(
        self, missing: MissingVersion, longest: timedelta = LONGEST_MISSING_RETRY, *, inline: bool = False
    ) -> ApplicationError:
        """The failure that leaves an activity to another worker; soon, if one that polls says that it can take it.

        Args:
            missing: What this worker lacks.
            longest: Bound of the wait before another worker is offered the activity.
            inline: Whether the agent is of a request, so that any worker with other parts may have it.
        """
        there = await self._differ() is True if inline else await self._elsewhere.takes(missing)
        missing = replace(missing, elsewhere=there)
        info = activity.info()
        waited = datetime.now(UTC) - info.scheduled_time
        return error_of_missing_version(missing, info.attempt, waited, longest)

    async def read_definition(self, opening: OpenTurn) -> AgentDefinition | None:
        """The definition that a request brings; None if it brings none.

        Raises:
            ApplicationError: The definition is not valid, or this worker takes none from requests, or has not all that
                it names. The last two wait for another worker, unless all that poll are known to be like this one.
        """
        request = opening.request
        fields = request.definition
        if fields is None:
            return None
        if request.agent is not None:  # it may stand beside the object
            fields = {"name": request.agent, **fields}
        if request.agent is not None and request.agent != fields.get("name"):
            message = f"definition: it is of {fields['name']!r}, and agent says {request.agent!r}; leave agent out"
            raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, message))
        return await self._read_definition(fields, opening)

    async def _read_definition(self, fields: dict[str, JsonValue], opening: OpenTurn) -> AgentDefinition:
        name = str(fields.get("name", "?"))
        if self._inline is None:
            missing = MissingVersion(agent=name, what="agent", name=name)
            raise await self._error_of_unmade(missing, NOT_ALLOWED, opening)
        try:
            agent = self._inline.agent(fields)
        except AgentDefinitionError as error:
            said, lacks = f"definition: {error}", error.__cause__
            if isinstance(lacks, UnregisteredError):
                missing = MissingVersion(agent=name, what=lacks.kind, name=lacks.name)
                raise await self._error_of_unmade(missing, said, opening) from None
            raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, said)) from None
        return replace(agent.definition, inline=fields)

    async def _error_of_unmade(self, missing: MissingVersion, said: str, opening: OpenTurn) -> ApplicationError:
        """The failure of an agent of a request that this worker cannot make: final if no worker that polls could."""
        if opening.stopped:
            return _error_of_stopped(missing.agent)
        if await self._differ() is False:
            return permanent(runtime_error(ReasonCode.REQUEST_INVALID, said))
        return await self.offer(missing, inline=True)

    async def _differ(self) -> bool | None:
        """Whether a worker that polls makes agents of requests of other parts than this one."""
        return await self._elsewhere.differ(NO_INLINE if self._inline is None else self._inline.mark)


def _error_of_stopped(agent: str) -> ApplicationError:
    message = f"the turn was stopped before a worker that has an agent {agent!r} opened it"
    return permanent(runtime_error(ReasonCode.RUNTIME_ABORTED, message))


KEPT_DEFINITIONS = 256
"""Definitions kept in memory. Running turns use one for each version of an agent."""


class Definitions:
    """A small cache over the store; a definition never changes under its hash."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: OrderedDict[str, AgentDefinition] = OrderedDict()

    async def get(self, digest: str) -> AgentDefinition:
        """The definition with this hash, from memory or the store."""
        definition = self._kept.get(digest)
        if definition is None:
            async with store_failures():
                definition = await self._store.definition(digest)
            self.keep(digest, definition)
        else:
            self._kept.move_to_end(digest)
        return definition

    def keep(self, digest: str, definition: AgentDefinition) -> None:
        """Remember a definition, and forget the one unused for longest."""
        self._kept[digest] = definition
        while len(self._kept) > KEPT_DEFINITIONS:
            self._kept.popitem(last=False)


LONGEST = timedelta(seconds=30)
"""Timeout of an agent's function that makes instructions."""

ERROR_CHARACTERS = 500


class Instructions:
    """Makes the instructions of one worker's turns."""

    def __init__(self, bodies: Bodies, secrets: frozenset[str]) -> None:
        self._bodies = bodies
        self._secrets = secrets

    async def fill_instructions(
        self, definition: AgentDefinition, agent: Agent | None, context: TurnContext
    ) -> AgentDefinition:
        """The definition with the instructions for a turn with this context.

        Raises:
            ApplicationError: A placeholder names nothing that the context has, or the agent's function failed.
        """
        if agent is None:
            return definition
        try:
            if isinstance(agent.instructions, str):
                text = fill_in(definition.instructions, context)
            else:
                text = await self._call_function(agent, context)
        except PlaceholderError as error:
            message = f"the instructions of agent {definition.name!r} {error}"
            raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, message)) from None
        except Exception as error:  # noqa: BLE001 - the edge: it is the author's code
            said = redact_and_cut(text_of(error), self._secrets)[:ERROR_CHARACTERS] or "no message"
            message = f"the instructions of agent {definition.name!r} could not be made: {kind_of(error)}: {said}"
            activity.logger.warning("%s", message, exc_info=error)
            raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, message)) from None
        return replace(definition, instructions=text)

    async def _call_function(self, agent: Agent, context: TurnContext) -> str:
        """The text that the agent's function returns, within ``LONGEST``."""
        assert callable(agent.instructions), "any other instructions are a text"  # noqa: S101 - narrows the type
        limit = LONGEST.total_seconds()
        name = f"instructions of {agent.name}"
        note_spent()
        body = self._bodies.start_function(name, agent.instructions, [context], _read_instructions)
        late = TimeoutError(f"the function ran longer than {limit:g} s")
        given: str = await wait_within(body, limit, who="the function", late=late, give_up=lambda: None)
        if len(given.encode()) > MAX_DEFINITION_BYTES:
            msg = f"the text is {len(given.encode()):,} bytes, the limit is {MAX_DEFINITION_BYTES:,}"
            raise ValueError(msg)
        return dedent_instructions(given)


def _read_instructions(given: object) -> str:
    """The text that an author's function returned.

    Raises:
        TypeError: It is something else.
    """
    if not is_of(given, str):
        msg = f"the function returned a {type(given).__name__}; return a text"
        raise TypeError(msg)
    return to_text(given)


def skill_tool(frozen: Sequence[Skill], here: Sequence[Skill]) -> Tool[..., Any]:
    """The tool that reads the skills which the turn began with; ``here`` are the skills in this worker's folders."""

    def read(name: str) -> str:
        skill = skills.resolve_skill(name, frozen)
        own = next((other for other in here if other.id == skill.id), None)
        folder = own.folder if own is not None and Path(own.folder).is_dir() else ""
        return skills.render_skill(skill, folder=folder, note=_note(skill, own, folder))

    return replace(skills.skill, function=read)


def _note(skill: Skill, own: Skill | None, folder: str) -> str:
    """Describe the skill's files to the model before it uses them: they may be missing here, or have changed."""
    if skill.files and not folder:
        return "the worker that runs this call does not have the folder of the skill; its files cannot be read here."
    missing = [name for name in skill.files if not (Path(folder) / name).is_file()]
    if missing:
        return f"the worker that runs this call lacks these files: {', '.join(missing)}."
    if folder and own is not None and own.model_dump() != skill.model_dump():
        return "the folder on the worker that runs this call holds another version of the skill."
    return ""


KEPT_CONTEXTS = 1_024
"""Contexts kept in memory. Each running turn uses one."""


class TurnContexts:
    """The turns' contexts, cached in one worker. A context never changes once its turn is open."""

    def __init__(
        self,
        store: Store,
        environment: Mapping[str, str],
        tenant_variables: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self._store = store
        self._environment = environment
        self._owners = tenant_variables or {}
        self._kept: OrderedDict[tuple[str, int], TurnContext] = OrderedDict()

    async def load_context(self, session: str, turn: int) -> TurnContext:
        """The context that a turn began with; an empty one if there is no such turn."""
        key = (session, turn)
        if key not in self._kept:
            found = await self._store.events_by_key(session, (f"{turn}/agent_start",))
            start = found[0].event if found else None
            context = TurnContext()
            if isinstance(start, AgentStart):
                context = TurnContext(data=start.context, tenant=start.tenant, by=start.by)
            self.keep(session, turn, context)
        self._kept.move_to_end(key)
        return self._kept[key]

    def keep(self, session: str, turn: int, context: TurnContext) -> None:
        """Remember the context of a turn, and forget the one unused for longest."""
        self._kept[session, turn] = context
        while len(self._kept) > KEPT_CONTEXTS:
            self._kept.popitem(last=False)

    async def load_call_context(self, call: CallTool) -> CallContext:
        """The context that a tool's body or reconciler gets. The idempotency key is the same for every attempt.

        Raises:
            ToolUnavailableError: The turn's context names a variable that this worker's environment lacks.
        """
        turn = await write_until_stored(lambda: self.load_context(call.session, call.turn))
        return CallContext(
            session=call.session,
            turn=call.turn,
            call_id=call.call_id,
            idempotency_key=f"{call.session}/{call.turn}/{call.call_id}",
            data=self.data_for_code(turn),
            tenant=turn.tenant,
            by=turn.by,
        )

    async def resolve_context(self, opening: OpenTurn, source: TurnBefore | None) -> TurnContext:
        """The context of a turn that is about to open.

        A delegate has its caller's. Data and tenant stay for the turns of a session until a request brings others;
        another tenant begins without data. ``by``, who started the turn, is of that turn alone.
        """
        request = opening.request
        if request.delegated is not None:
            return await self.load_context(request.delegated.session, request.delegated.turn)
        before = TurnContext() if source is None else await self.load_context(source.session, source.turn)
        if request.replies:
            return before
        tenant = request.tenant or before.tenant
        data = request.context
        if data is None:
            data = before.data if tenant == before.tenant else {}
        return TurnContext(data=data, tenant=tenant, by=request.by)

    def refuse_strange_variables(self, context: TurnContext) -> None:
        """See that a turn that is about to open names no variable of another tenant.

        Raises:
            ApplicationError: It does.
        """
        if (message := describe_strange_variable(context, self._owners)) is not None:
            raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, message))

    def data_for_code(self, context: TurnContext) -> dict[str, JsonValue]:
        """A copy of the data, with each reference to a variable replaced by its value.

        Raises:
            ToolUnavailableError: This worker's environment lacks a variable, or it belongs to another tenant.
        """
        if (message := describe_strange_variable(context, self._owners)) is not None:  # opened by another worker
            raise ToolUnavailableError(message)
        copied: dict[str, JsonValue] = json.loads(json.dumps(context.data))
        return {name: self._resolve(name, value) for name, value in copied.items()}

    def _resolve(self, name: str, value: JsonValue) -> JsonValue:
        if isinstance(value, dict):
            return {inner: self._resolve(f"{name}.{inner}", part) for inner, part in value.items()}
        if isinstance(value, list):
            return [self._resolve(name, part) for part in value]
        variable = variable_of(value)
        if variable is None:
            return value
        if not self._environment.get(variable):
            msg = f"context.{name} of this turn stands for {variable}, which is not set; set it where the worker starts"
            raise ToolUnavailableError(msg)
        return self._environment[variable]
