"""``perdure doctor``: what it says of the keys that content in Temporal is encrypted with."""

import base64
import json
from typing import Any

import pytest
import temporalio.client
from temporalio.worker import Worker

from perdure.client import Client, KeysMismatchError
from perdure.client.connect import make_converter
from perdure.contracts.names import AGENT_TURN
from perdure.security.keyring import Keyring
from perdure.settings import Settings
from perdure.worker.app import build_store_worker
from tests.house import House, eventually
from tests.workflow.test_people_doors import perdure

pytestmark = pytest.mark.deep

OLD, NEW, OTHER = (base64.b64encode(bytes(range(start, start + 32))).decode() for start in (0, 100, 200))


async def doctor(house: House, keys: str, *options: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code, and what is said of encryption."""
    house.environment.setenv("PERDURE_ENCRYPTION_KEYS", keys)
    code, output, errors = await perdure("doctor", "--json", *options)
    assert errors == "", output
    return code, [check for check in json.loads(output)["checks"] if check["check"] in {"encryption", "settings"}]


async def told(house: House, keys: str) -> Worker:
    """What a worker with these keys tells of itself."""
    converter = make_converter(Keyring.parse(keys))
    temporal = await temporalio.client.Client.connect(house.server.address, data_converter=converter)
    return build_store_worker(temporal, house.settings, house.store)


async def test_a_process_and_a_worker_that_cannot_read_each_other_are_named_and_refused(house: House) -> None:
    """At the start of a client, and plainly by the doctor."""
    async with await told(house, f"new:{NEW},old:{OLD}"):

        async def refused() -> str | None:
            try:
                await Client.connect(Settings(encryption_keys=f"old:{OLD}", task_queue=house.settings.task_queue))
            except KeysMismatchError as error:
                return str(error)
            return None

        assert "encrypts with the key 'new', which this process does not have" in await eventually(refused)
        with pytest.raises(KeysMismatchError, match="which this process does not have"):
            await Client.connect(Settings(task_queue=house.settings.task_queue))
        code, (_, found) = await doctor(house, f"new:{OTHER},old:{OLD}")
        assert (code, found["ok"]) == (2, False)
        assert "has another key than this process under the id 'new'" in found["text"]
        assert found["fix"].startswith("give every process the same keys in PERDURE_ENCRYPTION_KEYS")
        _, (_, found) = await doctor(house, f"old:{OLD},new:{NEW}")
        assert (found["ok"], found["text"]) == (True, "encrypts with 'old', has old, new; 1 workers read it")
        code, (found, _) = await doctor(house, "new:???")
        assert (code, found["text"]) == (2, "PERDURE_ENCRYPTION_KEYS: the key 'new' is no base64")
        assert found["fix"] == "make one with: openssl rand -base64 32"


async def test_the_doctor_decodes_the_oldest_open_turn_and_says_which_keys_still_occur(house: House) -> None:
    async def start(session: str, keys: str) -> None:
        converter = make_converter(Keyring.parse(keys))
        temporal = await temporalio.client.Client.connect(house.server.address, data_converter=converter)
        request = {"agent": "nobody", "prompt": "go"}
        queue = house.settings.task_queue
        await temporal.start_workflow(AGENT_TURN, request, id=f"{house.session}-{session}", task_queue=queue)

    await start("first", f"old:{OLD}")
    await start("second", f"plain,old:{OLD}")

    async def looked(keys: str) -> list[dict[str, Any]] | None:
        _, found = await doctor(house, keys, "--keys")
        return found if any("of 2 open turns" in check["text"] for check in found) else None

    found = await eventually(lambda: looked(f"new:{NEW},old:{OLD}"))
    texts = [check["text"] for check in found]
    assert f"the oldest open turn, {house.session}-first, can be read: 1 payloads" in texts
    assert "old: 1 of 2 open turns, 0 schedules; plain text: 1 of 2 open turns, 0 schedules" in texts
    lacking = await looked(f"new:{NEW}")
    assert lacking is not None
    wrong = [check for check in lacking if check["ok"] is False]
    assert "cannot be read: content is encrypted with the key 'old', and this process has new" in wrong[0]["text"]
    assert wrong[1]["fix"] == "add old to PERDURE_ENCRYPTION_KEYS"
