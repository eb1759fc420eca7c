"""The context of turns, as tools, hooks and instructions get it: frozen in the turn's first event."""

import json
from collections import OrderedDict
from collections.abc import Mapping

from perdure.agents.errors import ToolUnavailableError
from perdure.contracts.events import AgentStart
from perdure.contracts.turn_context import TurnContext, variable_of
from perdure.contracts.turns import OpenTurn
from perdure.contracts.values import JsonValue
from perdure.store import NotFoundError, Store

KEPT = 1_024
"""Contexts kept in memory; one is needed for each turn that runs."""


class TurnContexts:
    """The contexts that one worker has read; one never changes once its turn is open."""

    def __init__(self, store: Store, environment: Mapping[str, str]) -> None:
        self._store = store
        self._environment = environment
        self._kept: OrderedDict[tuple[str, int], TurnContext] = OrderedDict()

    async def of(self, session: str, turn: int) -> TurnContext:
        """The context that a turn began with; an empty one of a turn that an older release has opened."""
        key = (session, turn)
        if key not in self._kept:
            found = await self._store.events_by_key(session, (f"{turn}/agent_start",))
            start = found[0].event if found else None
            context = TurnContext()
            if isinstance(start, AgentStart):
                context = TurnContext(data=start.context, tenant=start.tenant, by=start.by)
            self._kept[key] = context
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    async def of_opening(self, opening: OpenTurn) -> TurnContext:
        """The context that a turn is to begin with.

        A delegate has its caller's. The turns of a session share data and tenant until a request brings others; who
        started a turn holds for that turn. Another tenant begins with no data.
        """
        request = opening.request
        if request.delegated is not None:
            return await self.of(request.delegated.session, request.delegated.turn)
        before = await self._before(opening)
        if request.reply is not None:
            return before
        tenant = request.tenant or before.tenant
        data = request.context
        if data is None:
            data = before.data if tenant == before.tenant else {}
        return TurnContext(data=data, tenant=tenant, by=request.by)

    async def _before(self, opening: OpenTurn) -> TurnContext:
        """The context of the conversation that the turn goes on with."""
        origin = opening.request.resume_from
        session = (origin.session if origin is not None else None) or opening.session
        try:
            turn = (origin.turn if origin is not None else None) or (await self._store.session(session)).turn
        except NotFoundError:
            return TurnContext()
        return await self.of(session, turn)

    def data_for_code(self, context: TurnContext) -> dict[str, JsonValue]:
        """A copy of the data, with the values of the variables that stand in it.

        Raises:
            ToolUnavailableError: A variable is not set here.
        """
        copied: dict[str, JsonValue] = json.loads(json.dumps(context.data))
        return {name: self._resolved(name, value) for name, value in copied.items()}

    def _resolved(self, name: str, value: JsonValue) -> JsonValue:
        if isinstance(value, dict):
            return {inner: self._resolved(f"{name}.{inner}", part) for inner, part in value.items()}
        if isinstance(value, list):
            return [self._resolved(name, part) for part in value]
        variable = variable_of(value)
        if variable is None:
            return value
        if not self._environment.get(variable):
            msg = f"context.{name} of this turn stands for {variable}, which is not set; set it where the worker starts"
            raise ToolUnavailableError(msg)
        return self._environment[variable]
