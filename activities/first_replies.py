"""Replies that begin a turn: whether the turn before, which has stopped, waits for them."""

from perdure.contracts.agents import AgentDefinition
from perdure.contracts.turns import OpenTurn
from perdure.engine.input_requests import RESULTS, ReplyError, check_time, check_until, validate_reply
from perdure.store.records import SessionBefore


def check_first_replies(opening: OpenTurn, before: SessionBefore, definition: AgentDefinition) -> None:
    """See that the turn before waits for these replies; another agent can only go on once nothing else is open.

    Raises:
        ReplyError: It does not.
    """
    calls = {call.request_id: call for call in before.waiting_calls}
    requests = {request.request_id: request for request in before.requests}
    for reply in opening.request.replies:
        call = calls.get(reply.request)
        if call is None or reply.request not in requests:
            raise ReplyError(f"session {opening.session!r} does not wait for {reply.request!r}")
        tool = definition.tool(call.tool)
        schema = call.asked.form if call.asked is not None else tool.answer if tool is not None else None
        validate_reply(call, reply, schema)
        if reply.decision not in RESULTS:  # a turn that has stopped for a result tells nobody that it is late
            check_time(requests[call.request_id], opening.run_started_at)
        check_until(reply, opening.run_started_at)
    if opening.request.prompt and (left := _open_requests(opening, before)):
        msg = f"prompt: is read behind the replies to all requests; reply to {min(left)!r} too, or leave the prompt out"
        raise ReplyError(msg)
    replied = {reply.request for reply in opening.request.replies if reply.decision in RESULTS}
    if opening.request.agent not in {None, definition.name} and calls.keys() - replied:
        theirs = f"the calls that wait are of {definition.name!r}"
        msg = f"agent: {theirs}; give the results of all of them, or name no other agent"
        raise ReplyError(msg)


def _open_requests(opening: OpenTurn, before: SessionBefore) -> set[str]:
    """Requests of the turn before that nobody has replied to, and that can still be replied to."""
    replied, at = {reply.request for reply in opening.request.replies}, opening.run_started_at
    requests = (request for request in before.requests if request.request_id not in replied)
    return {one.request_id for one in requests if one.expires_at is None or at < one.expires_at}
