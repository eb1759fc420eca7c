"""One tool of each kind, each leaves a line in the world outside, and points at which all calls of a turn meet.

A turn's session ends with the number of its point. When all calls of all turns have met, the worker is sent the signal
that ``SIGNAL`` names; without it, it is a worker like any other.
"""

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path

from perdure import Agent, DidNotHappen, EffectUnknown, Happened, StdioServerConfig, tool
from perdure.agents.context import ToolContext

CALLS = (
    "peer__whoami",
    "put",
    "put_async",
    "pay",
    "pay_async",
    "book",
    "book_async",
    "send",
    "ship",
)
"""Safe, idempotent, unsafe, with a reconciler that finds out, one that cannot tell, and one that fails."""

POINTS = (
    "before claim_call",
    "after claim_call",
    "in the body",
    "after the body",
    "before finish_call",
    "after finish_call",
)
"""Where a call can be when its worker is killed."""

Result = Happened | DidNotHappen | EffectUnknown


def point_of(session: str) -> str:
    """The point of a turn."""
    return POINTS[int(session.rpartition(".")[2])]


def meets(session: str, point: str) -> bool:
    """Whether the calls of a turn meet at this point."""
    return "SIGNAL" in os.environ and point_of(session) == point


class Meeting:
    """Where the calls of all turns wait for each other, and then for the end of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._come: set[tuple[str, str]] = set()
        self._over = threading.Event()

    def wait(self, point: str, session: str, call_id: str) -> None:
        """For sync bodies."""
        if self._come_to(point, session, call_id):
            self._over.wait()

    async def wait_async(self, point: str, session: str, call_id: str) -> None:
        """For what runs on a loop."""
        if self._come_to(point, session, call_id):
            while not self._over.is_set():
                await asyncio.sleep(0.01)

    def _come_to(self, point: str, session: str, call_id: str) -> bool:
        """Whether the call waits here; the last one sends the signal."""
        if not meets(session, point):
            return False
        with self._lock:
            self._come.add((session, call_id))
            complete = len(self._come) == len(CALLS) * len(POINTS) and not self._over.is_set()
            if complete:
                os.kill(os.getpid(), signal.Signals[os.environ["SIGNAL"]])
                self._over.set()
        return True


meeting = Meeting()


def _world() -> Path:
    return Path(os.environ["EFFECTS_FILE"])


def _effect(context: ToolContext, name: str) -> None:
    with _world().open("a", encoding="utf-8") as file:
        file.write(f"{name} {context.idempotency_key}\n")


def _body(context: ToolContext, name: str) -> str:
    _effect(context, name)
    meeting.wait("in the body", context.session, context.call_id)
    return f"{name}: done"


async def _async_body(context: ToolContext, name: str) -> str:
    _effect(context, name)
    await meeting.wait_async("in the body", context.session, context.call_id)
    return f"{name}: done"


def _looked(context: ToolContext, name: str) -> Result:
    found = f"{name} {context.idempotency_key}" in _world().read_text(encoding="utf-8").splitlines()
    return Happened({"found": name}) if found else DidNotHappen()


def _look(context: ToolContext) -> Result:
    return _looked(context, "book")


async def _look_async(context: ToolContext) -> Result:
    return _looked(context, "book_async")


def _cannot_tell() -> Result:
    return EffectUnknown("the post office keeps no list")


async def _fail() -> Result:
    msg = "no answer from the port"
    raise ConnectionError(msg)


@tool(idempotent=True)
def put(context: ToolContext) -> str:
    """Put."""
    return _body(context, "put")


@tool(idempotent=True)
async def put_async(context: ToolContext) -> str:
    """Put."""
    return await _async_body(context, "put_async")


@tool
def pay(context: ToolContext) -> str:
    """Pay."""
    return _body(context, "pay")


@tool
async def pay_async(context: ToolContext) -> str:
    """Pay."""
    return await _async_body(context, "pay_async")


@tool(reconcile=_look)
def book(context: ToolContext) -> str:
    """Book."""
    return _body(context, "book")


@tool(reconcile=_look_async)
async def book_async(context: ToolContext) -> str:
    """Book."""
    return await _async_body(context, "book_async")


@tool(reconcile=_cannot_tell)
def send(context: ToolContext) -> str:
    """Send."""
    return _body(context, "send")


@tool(reconcile=_fail)
def ship(context: ToolContext) -> str:
    """Ship."""
    return _body(context, "ship")


peer = StdioServerConfig(
    name="peer",
    command=sys.executable,
    args=(str(Path(__file__).parent.parent / "mcp_peer.py"),),
    env={"MCP_JOURNAL": os.environ.get("MCP_JOURNAL", "")},
    pick=("whoami",),
)
agent = Agent(
    name="tester",
    model="openai/scripted",
    tools=[put, put_async, pay, pay_async, book, book_async, send, ship],
    mcp_servers=[peer],
)
