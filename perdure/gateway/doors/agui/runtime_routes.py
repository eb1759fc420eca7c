"""The routes of CopilotKit's runtime: its hooks take this door for one, without a server of their own in between.

A thread that is connected to is read from the log, so that a page which is loaded again has it, whatever was restarted.
"""

from typing import Annotated

from fastapi import Path
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from perdure.client.stream import from_store
from perdure.contracts.turns import RunState
from perdure.gateway.access import GatewayOf, Reader, Runner, SessionId, act_for, missing_as, own_session
from perdure.gateway.bodies import Body, Router
from perdure.gateway.doors.agui.carrying import last_turn, unknown_run, went_on_as
from perdure.gateway.doors.agui.history import read_history
from perdure.gateway.doors.agui.requests import RunBody, RunName
from perdure.gateway.doors.agui.streams import PREFIX, Following, stream_run
from perdure.gateway.doors.responses.objects import Item
from perdure.gateway.following import cancel_turn, own_view

router = Router(prefix=PREFIX, include_in_schema=False)

NOT_THERE = ("audioFileTranscriptionEnabled", "suggestions", "a2uiEnabled", "openGenerativeUIEnabled")


@router.get("/info", operation_id="get_runtime_info")
async def get_info(_: Reader, gateway: GatewayOf) -> Response:
    """The agents that workers have registered, and what of a runtime there is."""
    store = await gateway.client.store()
    agents: Item = {}
    for agent in await from_store(store.agents):
        definition = await from_store(lambda name=agent.definition: store.definition(name))  # type: ignore[misc]
        about: Item = {"name": agent.name, "description": definition.description, "className": "HttpAgent"}
        agents[agent.name] = about
    threads: Item = dict.fromkeys(("list", "inspect", "mutations", "realtimeMetadata"), False)
    left_out: Item = dict.fromkeys(NOT_THERE, False)
    told: Item = {
        "version": "1",
        "mode": "sse",
        "agents": agents,
        "threadEndpoints": threads,
        "telemetryDisabled": True,
    }
    return JSONResponse({**told, **left_out})


@router.post("/agent/{agent}/connect", operation_id="connect_runtime_agent")
async def connect(
    agent: Annotated[str, Path(max_length=200)], caller: Reader, request: Request, body: RunBody, gateway: GatewayOf
) -> Response:
    """The thread as it is: a snapshot of what is over, and the last run, which may go on."""
    view = await own_view(gateway, caller, body.thread)
    if view is None:
        return await stream_run(gateway, caller, Following(None, agent, body.thread, body.run))
    request.state.session = body.thread
    is_old, reader = body.version is None, await act_for(gateway, caller, body.thread)
    waiting = [one.request_id for one in view.requests] if view.state is RunState.WAITING_FOR_INPUT else []
    last = last_turn(view)
    with gateway.limits.stream(reader.tenant):
        if view.opened is not None and await gateway.client.views.is_turn_coming(view.opened[1]):
            last += 1
        transcript, place = await read_history(gateway, body.thread, last, waiting, is_old=is_old)
    following = Following(place, agent, body.thread, body.run, is_old=is_old, before=transcript)
    return await stream_run(gateway, reader, following)


class StopBody(Body):
    """Which run is meant; without one, whatever runs in the thread."""

    runId: RunName | None = None  # noqa: N815 - the protocol's name


@router.post("/agent/{agent}/stop/{session}", operation_id="stop_runtime_agent")
async def stop(
    agent: Annotated[str, Path(max_length=200)],
    session: SessionId,
    caller: Runner,
    request: Request,
    gateway: GatewayOf,
    body: StopBody | None = None,
) -> Response:
    """Cancel the turn of a thread, and answer once it has ended; not if the run is known to have ended before it.

    A run that replies go on with, in the next turn, is still the same for a front end.
    """
    named = (body.runId if body is not None else None) or ""
    with missing_as(unknown_run(session, named)):
        await own_session(session, await act_for(gateway, caller, session), gateway)
    request.state.session = session
    view = await gateway.client.session_view(session)
    turn = await gateway.client.views.turn_of_request(session, named) if named else None
    nothing = JSONResponse({"stopped": False, "message": f"thread {session!r} has no such run that goes on"})
    if turn is not None and not await went_on_as(gateway, session, turn, last_turn(view)):
        return nothing
    number = None if view.opened is None or view.state is RunState.ENDED else last_turn(view)
    if not await cancel_turn(gateway, caller, request, session, number):
        return nothing
    interrupt: Item = {"type": "RUN_ERROR", "message": "the run was cancelled", "code": "STOPPED"}
    return JSONResponse({"stopped": True, "interrupt": interrupt})
