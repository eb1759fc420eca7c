"""Webhooks and blocks of one tenant: a stranger's number of them has a limit, and is no other tenant's."""

from uuid import uuid4

import pytest

from perdure import Agent
from tests.gateway import gateway, token_lines
from tests.house import House

AGENT = Agent(name="tester", model="openai/scripted")


@pytest.mark.parametrize("most", [2, 0])
async def test_a_tenant_adds_no_more_webhooks_than_its_limit(house: House, most: int) -> None:
    """S-95."""
    lines, tokens = token_lines(ann=(f"acme-{uuid4().hex[:6]}", "admin"), eve=(f"beta-{uuid4().hex[:6]}", "admin"))
    hook = {"url": "https://example.com/hook"}
    async with (
        gateway(house, gateway_tokens=lines, gateway_max_webhooks=most) as door,
        door.holder(tokens["ann"]) as ann,
        door.holder(tokens["eve"]) as eve,
    ):
        made = [await ann.post("/v1/webhooks", json=hook) for _ in range(3)]
        if not most:
            assert [one.status_code for one in made] == [201] * 3
            return
        assert [one.status_code for one in made] == [201, 201, 429]
        told = made[2].json()
        assert told["code"] == "request.too_many_webhooks"
        assert told["detail"] == "the tenant has 2 webhooks, as many as it may; remove one first"
        assert (await eve.post("/v1/webhooks", json=hook)).status_code == 201
        assert (await ann.delete(f"/v1/webhooks/{made[0].json()['id']}")).status_code == 204
        assert (await ann.post("/v1/webhooks", json=hook)).status_code == 201


async def test_a_tenant_sets_no_more_blocks_than_its_limit_and_the_same_one_again(house: House) -> None:
    """S-95: a block that is in force, a dry run and a lift are no more."""
    lines, tokens = token_lines(ann=(f"acme-{uuid4().hex[:6]}", "admin"), eve=(f"beta-{uuid4().hex[:6]}", "admin"))
    async with (
        house.worker(AGENT),
        gateway(house, gateway_tokens=lines, gateway_max_blocks=2) as door,
        door.holder(tokens["ann"]) as ann,
        door.holder(tokens["eve"]) as eve,
    ):

        async def block(agent: str, **more: object) -> tuple[int, str]:
            answer = await ann.post("/v1/blocks", json={"agent": agent, "reason": "stop", **more})
            return answer.status_code, answer.json().get("code", "")

        assert [await block(name) for name in ("a", "b")] == [(200, ""), (200, "")]
        assert await block("c") == (429, "request.too_many_blocks")
        assert await block("a") == (200, "")
        assert await block("c", dry_run=True) == (200, "")
        assert (await eve.post("/v1/blocks", json={"agent": "c", "reason": "stop"})).status_code == 200
        (first, _) = (await ann.get("/v1/blocks")).json()["items"]
        assert (await ann.post(f"/v1/blocks/{first['id']}/lift")).status_code == 200
        assert await block("c") == (200, "")
