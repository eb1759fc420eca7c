"""The same exceptions on a real worker, whose server hears of each attempt."""

from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel

from perdure import Agent, hook, tool
from perdure.testing import Script, ScriptedProvider, call, say
from tests.house import House
from tests.wild.test_author_exceptions import RAISED

pytestmark = pytest.mark.timeout(90)


def made_with(place: str, kind: str, runs: Path) -> Agent:
    """An agent with code that raises it in one place; each run leaves a line."""

    def fail(_: Any = None) -> Any:
        with runs.open("a") as file:
            file.write("run\n")
        error = RAISED[kind]()
        raise error

    @tool(name="work", catch=True, idempotent=True)
    def work() -> str:
        return str(fail())

    class Answer(BaseModel):
        count: Annotated[int, AfterValidator(fail)]

    settings: dict[str, dict[str, Any]] = {
        "tool": {"tools": [work]},
        "hook": {"hooks": [hook("generation_end", name="fail")(fail)], "on_hook_error": "fail"},
        "instructions": {"instructions": fail},
        "validator": {"output_schema": Answer, "output_corrections": 0},
    }
    return Agent(name="tester", model="openai/scripted", **settings[place])


EXPECTED = {
    "tool": ("finished", None, 2),
    "hook": ("error", "runtime.hook_failed", 1),
    "instructions": ("error", "request.invalid", 0),
    "validator": ("error", "llm.schema_violation", 1),
}


@pytest.mark.parametrize("place", EXPECTED)
@pytest.mark.parametrize("kind", ["CancelledError", "UnprintableError"])
async def test_it_runs_once_and_the_turn_ends(house: House, tmp_path: Path, place: str, kind: str) -> None:
    """S-25: no worker is taken for lost, and no answer is bought again."""
    runs = tmp_path / "runs"
    agent = made_with(place, kind, runs)
    replies = (call(("work", {})), say("done")) if place == "tool" else (say('{"count": 3}'),) * 5
    async with ScriptedProvider(Script(replies=replies)) as provider:
        house.use(provider)
        async with house.worker(agent):
            result = await house.run()
    asked = len(provider.requests)
    assert (result["stop_reason"], result["reason_code"], asked) == EXPECTED[place]
    assert runs.read_text().splitlines() == ["run"]
