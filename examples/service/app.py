"""A web service in front of agents: it starts jobs, streams their events, cancels them, and passes on decisions."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Literal

from fastapi import Depends, FastAPI, Header, Request
from fastapi.responses import JSONResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel

from perdure import TurnResult
from perdure.client import Client, PerdureError, RequestRefusedError, SessionBusyError, Turn, UnknownSessionError


class Job(BaseModel):
    """What an agent is asked to do."""

    agent: str
    prompt: str
    session: str | None = None
    request_id: str | None = None  # the same id twice is the same job


class Decision(BaseModel):
    """What a person says to a tool call that needs approval."""

    decision: Literal["approve", "deny"]
    by: str
    reason: str = ""


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One client for the life of the service."""
    async with await Client.connect() as client:
        app.state.client = client
        yield


def connected(request: Request) -> Client:
    """The service's client."""
    client: Client = request.app.state.client
    return client


Connected = Annotated[Client, Depends(connected)]


async def find_turn(session: str, client: Connected) -> Turn:
    """The session's running or last turn."""
    return await client.attach(session)


app = FastAPI(lifespan=lifespan)


@app.exception_handler(PerdureError)
async def explain(_: Request, error: Exception) -> JSONResponse:
    """Turn the client's errors into a status and one sentence."""
    statuses = {UnknownSessionError: 404, SessionBusyError: 409, RequestRefusedError: 422}
    status = next((status for kind, status in statuses.items() if isinstance(error, kind)), 503)
    return JSONResponse({"error": str(error)}, status)


@app.post("/jobs", status_code=202)
async def start(job: Job, client: Connected) -> dict[str, str]:
    """Start a job."""
    turn = await client.start(job.agent, job.prompt, session=job.session, request_id=job.request_id)
    return {"session": turn.session, "request_id": turn.request_id}


@app.get("/jobs/{session}/events", response_class=EventSourceResponse)
async def stream(
    session: str, turn: Annotated[Turn, Depends(find_turn)], last_event_id: Annotated[int, Header()] = 0
) -> AsyncIterator[ServerSentEvent]:
    """Stream the events of the running or last turn, from the one after ``Last-Event-ID``."""
    async for event in turn.events(after=last_event_id):
        yield ServerSentEvent(id=str(event.seq), event=event.event.type, raw_data=event.to_json())


@app.get("/jobs/{session}/result")
async def result(turn: Annotated[Turn, Depends(find_turn)]) -> TurnResult:
    """Wait for the end of the running or last turn."""
    return await turn.result()


@app.post("/jobs/{session}/cancel", status_code=202)
async def cancel(session: str, client: Connected, reason: str = "") -> dict[str, bool]:
    """Stop the running turn."""
    return {"stops": await client.cancel(session, reason)}


@app.post("/jobs/{session}/requests/{request}")
async def decide(session: str, request: str, decision: Decision, client: Connected) -> dict[str, str]:
    """Approve or deny a tool call."""
    if decision.decision == "approve":
        receipt = await client.approve(session, request, by=decision.by)
    else:
        receipt = await client.deny(session, request, by=decision.by, reason=decision.reason)
    return {"decision": receipt.decision, "by": receipt.by}
