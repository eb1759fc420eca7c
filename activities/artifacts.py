"""The artifacts of calls: how bodies read them, which of them a model can read on in, and how they are recorded."""

import asyncio
from collections.abc import Callable

from perdure.activities.call_events import Call
from perdure.activities.outputs import attachment_id, output_id
from perdure.activities.storing import until_stored
from perdure.agents.files import MEDIA_TYPE, UNKNOWN_TYPE, File
from perdure.agents.outputs import read_output
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.recordings import ToolFixture
from perdure.contracts.tools import CallTool
from perdure.store import Artifact, NotFoundError, Store


def finder(store: Store, session: str) -> Callable[[str], File | None]:
    """What a body finds an artifact of its session with. It blocks, and may be called from any thread but this one."""
    loop = asyncio.get_running_loop()

    def find(handle: str) -> File | None:
        found = asyncio.run_coroutine_threadsafe(_patiently(store, handle, session), loop).result()
        if found is None:
            return None
        kind = found.content_type
        return File(found.id, found.data, kind if MEDIA_TYPE.fullmatch(kind) else UNKNOWN_TYPE)

    return find


async def _patiently(store: Store, handle: str, session: str) -> Artifact | None:
    """Wait for a store that is away for a while: a failed read would be taken for the tool's own failure."""
    return await until_stored(lambda: _stored(store, handle, session))


def whole_output(call: Call, text: str) -> Artifact:
    """An output that is too long for the conversation."""
    return Artifact(id=output_id(call.call_id), session=call.session, media_type="text/plain", text=text)


def reading_tool(definition: AgentDefinition) -> str | None:
    """What the agent calls ``perdure.read_output``; None if it does not have it."""
    reference = read_output.declaration.reference
    return next((tool.name for tool in definition.tools if tool.reference == reference), None)


async def artifacts_in_store(store: Store, call: CallTool) -> list[Artifact]:
    """The whole output of a call that has ended, if there is one, and its images and files."""
    whole = await _stored(store, output_id(call.call_id), call.session)
    artifacts: list[Artifact] = []
    while (one := await _stored(store, attachment_id(call.call_id, len(artifacts) + 1), call.session)) is not None:
        artifacts.append(one)
    return artifacts if whole is None else [whole, *artifacts]


def recorded(call: CallTool, fixture: ToolFixture) -> list[Artifact]:
    """The artifacts of a recorded call, as this one's."""
    artifacts = [
        Artifact(id=attachment_id(call.call_id, number), session=call.session, media_type=one.media_type, text=one.text)
        for number, one in enumerate(fixture.attachments, start=1)
    ]
    return artifacts if fixture.artifact is None else [whole_output(call, fixture.artifact), *artifacts]


async def _stored(store: Store, handle: str, session: str) -> Artifact | None:
    try:
        return await store.artifact(handle, session=session)
    except NotFoundError:
        return None
