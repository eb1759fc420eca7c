"""Wrong log-ins: a right token lets in whoever else sends wrong ones, and an address is what a trusted proxy says."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping

import httpx
import pytest

from perdure.gateway.routes.ui import MOST_ADDRESSES, MOST_FAILURES, Failures
from perdure.settings import SettingsError, load_settings
from tests.gateway import Door, gateway, token_lines
from tests.house import House, eventually

LINES, MADE = token_lines(ann=("acme", "read"))
JSON = {"Content-Type": "application/json"}
PROXIES = ("127.0.0.1/32", "10.0.0.0/8")


@pytest.fixture(autouse=True)
def one_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test lies across the end of a minute, at which counts begin anew."""
    monkeypatch.setattr(Failures, "_now", staticmethod(lambda: 1))


async def try_token(door: Door, token: str, **headers: str) -> httpx.Response:
    return await door.http.post("/ui/login", json={"token": token}, headers=headers)


async def fail_often(door: Door, **headers: str) -> list[int]:
    return [(await try_token(door, f"wrong {n}", **headers)).status_code for n in range(MOST_FAILURES + 2)]


async def test_a_right_token_lets_in_however_many_wrong_ones_came_before(house: House) -> None:
    """T-10."""
    async with gateway(house, gateway_tokens=LINES) as door:
        statuses = await fail_often(door)
        assert statuses == [401] * MOST_FAILURES + [429] * 2
        refused = await try_token(door, "wrong again")
        assert (refused.json()["code"], refused.headers["retry-after"]) == ("request.rate_limited", "60")
        assert (await try_token(door, MADE["ann"])).status_code == 204


async def test_a_forwarded_address_of_anybody_is_believed_from_no_one(house: House) -> None:
    """Also not from this machine itself, where every caller without a proxy may be."""
    async with gateway(house, gateway_tokens=LINES) as door:
        sent = [await try_token(door, "wrong", **{"X-Forwarded-For": f"192.0.2.{n}"}) for n in range(MOST_FAILURES + 1)]
        assert sent[-1].status_code == 429


async def test_behind_named_proxies_each_address_counts_for_itself(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    """T-10."""
    caplog.set_level(logging.INFO, "perdure.audit")
    async with gateway(house, gateway_tokens=LINES, gateway_proxies=PROXIES) as door:
        of_one = {"X-Forwarded-For": "203.0.113.9, 192.0.2.1, 10.1.2.3"}  # the first is what the caller claims
        assert (await fail_often(door, **of_one))[-1] == 429
        assert (await try_token(door, "wrong", **{"X-Forwarded-For": "192.0.2.2"})).status_code == 401
        assert (await try_token(door, MADE["ann"], **of_one)).status_code == 204
    logins = [vars(record) for record in caplog.records if vars(record).get("action") == "login"]
    seen = [(login["who"], login["outcome"], login["address"]) for login in logins]
    assert seen == [
        *[("", "request.unauthenticated", "192.0.2.1")] * MOST_FAILURES,
        ("", "request.rate_limited", "192.0.2.1"),  # once a minute: who sends more does not fill the log
        ("", "request.unauthenticated", "192.0.2.2"),
        ("ann", "done", "192.0.2.1"),
    ]
    assert not any("wrong" in record.getMessage() or MADE["ann"] in str(vars(record)) for record in caplog.records)


async def test_a_right_token_lets_in_while_halves_of_wrong_log_ins_fill_the_memory_for_bodies(house: House) -> None:
    """T-10: And nobody without a tenant waits for those who showed no token."""
    lines, tokens = token_lines(ann=("acme", "read"), bob=("", "run"))
    done = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"token": "' + b"x" * 40
        await done.wait()
        yield b'"}'

    async with (
        gateway(house, gateway_tokens=lines, gateway_max_body_bytes=1_024) as door,
        door.holder(tokens["bob"]) as bob,
        httpx.AsyncClient(base_url=door.url, limits=httpx.Limits(max_connections=None), timeout=60) as many,
    ):
        holding = [asyncio.create_task(many.post("/ui/login", content=slowly(), headers=JSON)) for _ in range(30)]

        async def all_have_come() -> bool:
            return len(door.server.server_state.connections) >= len(holding)

        await eventually(all_have_come)
        assert (await try_token(door, tokens["ann"])).status_code == 204
        assert (
            await bob.post("/v1/sessions", json={"agent": "nobody", "prompt": "x" * 900, "no_such": 1})
        ).status_code == 422
        done.set()
        assert {answer.status_code for answer in await asyncio.gather(*holding)} <= {401, 429, 422}


def test_addresses_without_end_fill_no_memory_and_a_network_counts_as_one() -> None:
    """In IPv6 whoever has an address has 2^64 of them."""
    failures = Failures()
    assert [failures.note(f"2001:db8::{number:x}") for number in range(1, 4)] == [1, 2, 3]
    for number in range(MOST_ADDRESSES + 500):
        failures.note(f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}")
    assert len(failures) <= MOST_ADDRESSES
    assert failures.note("10.0.39.17") == 2, "one that was heard of lately"
    assert failures.note("2001:db8::7") == 1, "one that was not"


@pytest.mark.parametrize("proxies", ["*", "ingress", "10.0.0.0/33", "10.0.0.1/8"])
def test_a_proxy_that_is_no_address_is_refused(monkeypatch: pytest.MonkeyPatch, proxies: str) -> None:
    monkeypatch.setenv("PERDURE_GATEWAY_PROXIES", proxies)
    with pytest.raises(SettingsError, match=r"PERDURE_GATEWAY_PROXIES.* is no address of a proxy; write 10.1.2.3 or"):
        load_settings()


def test_proxies_are_addresses_and_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    said: Mapping[str, tuple[str, ...]] = {"": (), "10.1.2.3, fd00::/8": ("10.1.2.3/32", "fd00::/8")}
    for text, proxies in said.items():
        monkeypatch.setenv("PERDURE_GATEWAY_PROXIES", text)
        assert load_settings().gateway_proxies == proxies
