"""The routes of this door. A run is durable: a closed connection ends none, and a run is read again from the log."""

from collections.abc import Mapping
from typing import Annotated

from fastapi import Header, Path
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from perdure.contracts.errors import ReasonCode
from perdure.contracts.turns import RunState
from perdure.gateway.access import GatewayOf, Reader, Runner, SessionId, Starter, act_for
from perdure.gateway.bodies import Router
from perdure.gateway.doors import Door
from perdure.gateway.doors.agui import runtime_routes
from perdure.gateway.doors.agui.carrying import RunCarrier, own_run
from perdure.gateway.doors.agui.held import Held
from perdure.gateway.doors.agui.places import Seen
from perdure.gateway.doors.agui.requests import RunBody, read_run
from perdure.gateway.doors.agui.streams import PREFIX, Following, stream_run
from perdure.gateway.doors.responses.following import find_turn
from perdure.gateway.following import cancel_turn
from perdure.gateway.problems import Problem

router = Router(prefix=PREFIX, include_in_schema=False)

AgentName = Annotated[str, Path(max_length=200)]
RunPath = Annotated[str, Path(max_length=200)]


@router.post("/{agent}", operation_id="run_agent")
@router.post("/agent/{agent}/run", operation_id="run_runtime_agent")
async def run_agent(
    agent: AgentName, caller: Starter, _: Reader, request: Request, body: RunBody, gateway: GatewayOf
) -> Response:
    """Start a turn, reply to one that waits, or find the same run again; then stream its events."""
    place = await RunCarrier(gateway, caller, request, agent).carry_out(read_run(body), body)
    held = Held(body.messages)
    following = Following(place, agent, body.thread, body.run, is_old=body.version is None, held=held)
    return await stream_run(gateway, await act_for(gateway, caller, place.session), following)


@router.get("/{agent}/threads/{session}/runs/{run}", operation_id="get_run")
async def get_run(
    agent: AgentName,
    session: SessionId,
    run: RunPath,
    caller: Reader,
    request: Request,
    gateway: GatewayOf,
    last_event_id: Annotated[str | None, Header(max_length=50)] = None,
) -> Response:
    """The events of a run from its beginning, or behind the one that was seen last, then what comes."""
    seen = None if last_event_id is None else Seen.parse(last_event_id)
    place = await own_run(gateway, caller, agent, session, run)
    request.state.session = session
    return await stream_run(
        gateway, await act_for(gateway, caller, session), Following(place, agent, session, run), seen
    )


@router.delete("/{agent}/threads/{session}/runs/{run}", operation_id="cancel_run")
async def cancel_run(
    agent: AgentName, session: SessionId, run: RunPath, caller: Runner, request: Request, gateway: GatewayOf
) -> Response:
    """Cancel the turn of a run, and answer once it has ended; one that has ended stays as it is."""
    place = await own_run(gateway, caller, agent, session, run)
    request.state.session = session
    if (await find_turn(gateway, place)).state is not RunState.ENDED:
        await cancel_turn(gateway, caller, request, session, place.turn)
    return Response(status_code=204)


def write_error(problem: Problem, headers: Mapping[str, str] | None) -> Response:
    """The problem as AG-UI's event of a run that failed; ``code`` is ours."""
    status = 404 if problem.code == ReasonCode.REQUEST_UNKNOWN_AGENT else problem.status
    body = {"type": "RUN_ERROR", "message": problem.detail, "code": str(problem.code)}
    return JSONResponse(body, status, headers=dict(headers or {}))


router.routes.extend(runtime_routes.router.routes)

DOOR = Door(prefix=f"{PREFIX}/", router=router, form=write_error)
