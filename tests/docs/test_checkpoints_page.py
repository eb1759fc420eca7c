"""What the page on checkpoints shows is run, and its tables are those of the code."""

import re
from pathlib import Path
from typing import Any

from perdure.contracts.checkpoints import Checkpoint
from perdure.contracts.turns import StopReason
from perdure.testing import Script, ScriptedProvider, call, say
from tests.house import House

PAGE = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


async def test_the_work_of_the_page_sends_one_letter(house: House) -> None:
    names: dict[str, Any] = {}
    exec(compile("".join(BLOCKS), "docs/checkpoints.md", "exec"), names)
    script = Script(replies=(call(("send_letter", {"to": "Ada"})), say("It is sent.")))
    async with ScriptedProvider(script) as provider, house.worker(names["agent"]):
        house.use(provider)
        assert await names["work"](house.client) == ["max_steps_reached", "It is sent.", "It is sent."]
    assert names["SENT"] == ["Ada"]


def rows(heading: str) -> list[list[str]]:
    """The cells of the table that begins so."""
    (table,) = re.findall(rf"^\| {heading}.*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:] if line]


def test_the_table_has_every_field_of_a_checkpoint_in_order() -> None:
    assert [name for fields, _ in rows("field") for name in re.findall(r"`(\w+)`", fields)] == list(
        Checkpoint.model_fields
    )


def test_the_table_of_statuses_is_that_of_the_stop_reasons() -> None:
    said = {
        reason: (checkpoint.strip("`"), job.strip("`"))
        for reasons, checkpoint, job in rows("stop reason")
        for reason in re.findall(r"`(\w+)`", reasons)
    }
    assert said == {reason: (reason.checkpoint_status, reason.job_status) for reason in StopReason}
