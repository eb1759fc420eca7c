"""The schedule of the page is made, and its table has every field."""

import re
from pathlib import Path
from typing import Any

from perdure import Agent
from perdure.contracts.schedules import ScheduleRequest
from tests.house import House

PAGE = (Path(__file__).parents[2] / "docs" / "schedules.md").read_text(encoding="utf-8")
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


async def test_the_schedule_of_the_page_is_made(house: House) -> None:
    names: dict[str, Any] = {"Client": object}
    exec(compile(CODE, "docs/schedules.md", "exec"), names)
    async with house.worker(Agent(name="writer", model="openai/scripted")):
        assert await names["add"](house.client)
    made = await house.client.schedules.get("nightly")
    assert (made.agent, made.timezone) == ("writer", "Europe/Berlin")
    await house.client.schedules.remove("nightly")


def test_the_table_has_every_field() -> None:
    table = PAGE.split("| field | means |")[1].split("\n\n")[0]
    named = {
        name
        for row in table.splitlines()
        if row.startswith("| `")
        for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    assert named == ScheduleRequest.model_fields.keys() - {"id"}
