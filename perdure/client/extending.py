"""The part of the client that changes the limits of running turns."""

from typing import Unpack

from perdure.client.errors import NoWorkerError
from perdure.client.replies import Replies
from perdure.client.updates import extend_request, sent
from perdure.contracts.budgets import Limits
from perdure.contracts.turns import BudgetStatus


class Extending(Replies):
    """The part of the client that changes the limits of running turns."""

    async def budget(self, session: str) -> BudgetStatus | None:
        """The limits of the running turn and what counts against them; None if no turn runs or nobody answers."""
        return await self._runs.budget(session)

    async def extend(
        self, session: str, *, turn: int | None = None, end: bool = False, **limits: Unpack[Limits]
    ) -> BudgetStatus:
        """Set limits of the running turn, each as a whole; those that are not named stay. The same twice is harmless.

        Args:
            session: The session.
            turn: Only if this turn is the one that runs.
            end: Whether a limit may be one that is used up already, so that the turn ends.
            limits: ``max_steps``, ``cost_usd``, ``llm_calls``, ``tool_calls``, ``behavior_calls``, ``events``,
                ``seconds``, ``patches``, ``depth``.

        Returns:
            All limits of the turn, and what counts against them.

        Raises:
            RequestRefusedError: A limit cannot be set; the message says why.
            SessionIdleError: No turn of the session runs.
            UnknownSessionError: There is no session of that id.
            NoWorkerError: No worker took the limits.
        """
        request = extend_request(turn=turn, end=end, **limits)
        if await self._runs.newest(session) is None:
            await self._known_to_the_store(session)
        try:
            return await sent(self.temporal, session, request)
        except NoWorkerError:
            await self.check_worker()
            raise
