"""A callback is told what the iterator gives, and what it raises is not lost."""

import pytest

from perdure.client import Client, RequestRefusedError, Turn
from perdure.contracts.events import Envelope

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("worker")]


async def ended(client: Client) -> Turn:
    """A turn of two events."""
    turn = await client.start("writer", "go")
    await turn.result()
    return turn


async def test_a_callback_is_called_with_the_events_of_the_turn_in_order_until_its_end(client: Client) -> None:
    """S-50 S-47: while it runs and afterwards, from wherever one left off; what is read again says so."""
    turn = await client.start("writer", "go")
    heard: list[Envelope] = []
    await turn.listen(heard.append)
    again = [envelope async for envelope in turn.events()]
    assert heard == again
    assert all(envelope.replayed for envelope in again)
    assert [envelope.event.type for envelope in heard] == ["agent_start", "agent_end"]
    later: list[Envelope] = []
    await turn.listen(later.append, after=heard[0].seq)
    assert later == heard[1:]


@pytest.mark.parametrize("name", ["agent_start", "AgentStart"])
async def test_events_can_be_chosen_by_type_and_the_end_that_was_not_chosen_still_ends_them(
    client: Client, name: str
) -> None:
    """S-50."""
    turn = await ended(client)
    heard: list[Envelope] = []
    await turn.listen(heard.append, types=[name])
    assert heard == [envelope async for envelope in turn.events(types=[name])]
    assert [envelope.event.type for envelope in heard] == ["agent_start"]


async def test_an_async_callback_is_awaited_before_the_next_event(client: Client) -> None:
    turn = await ended(client)
    heard: list[str] = []

    async def hear(envelope: Envelope) -> None:
        heard.append(envelope.event.type)

    await turn.listen(hear)
    assert heard == ["agent_start", "agent_end"]


async def test_what_a_callback_raises_is_raised_and_listening_can_be_taken_up_again(client: Client) -> None:
    """S-50: a failing listener is not swallowed, and does not end the turn."""
    turn = await client.start("writer", "hold")
    heard: list[Envelope] = []

    def refuse(envelope: Envelope) -> None:
        heard.append(envelope)
        raise LookupError(envelope.event.type)

    with pytest.raises(LookupError, match="agent_start"):
        await turn.listen(refuse)
    assert len(heard) == 1
    await client.temporal.get_workflow_handle(turn.session).signal("finish")
    await turn.listen(heard.append, after=heard[0].seq)
    assert [envelope.event.type for envelope in heard] == ["agent_start", "agent_end"]


async def test_a_type_that_does_not_exist_is_refused_at_once(client: Client) -> None:
    turn = await client.start("writer", "hold")
    with pytest.raises(RequestRefusedError, match="did you mean 'agent_end'"):
        await turn.listen(print, types=["agent_ends"])
    await turn.cancel()
