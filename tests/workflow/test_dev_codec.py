"""``perdure dev`` with keys of content: its UI has what is encrypted decrypted, and no page but the UI's may ask."""

import base64
import os
from pathlib import Path

import httpx
import pytest
from google.protobuf.json_format import MessageToDict, ParseDict
from temporalio.api.common.v1 import Payload, Payloads

from perdure.cli.dev import codec_endpoint_of
from perdure.client.connect import make_converter
from perdure.local_ports import find_free_port
from perdure.security.keyring import Keyring
from perdure.settings import Settings
from tests.contract.repository import ROOT
from tests.workflow.test_dev_reload import AGENT, started

pytestmark = pytest.mark.deep

KEYS = f"k1:{base64.b64encode(bytes(range(32))).decode()}"


async def test_the_ui_is_told_of_the_gateway_which_decrypts_for_its_pages_alone(tmp_path: Path) -> None:
    (tmp_path / "my_agent.py").write_text(AGENT)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PERDURE_", "TEMPORAL_"))}
    own = {"PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT), "PERDURE_ENCRYPTION_KEYS": KEYS}
    ports = {name: find_free_port() for name in ("--port", "--ui-port", "--gateway-port", "--metrics-port")}
    options = [str(word) for pair in ports.items() for word in pair]
    ui, gateway = (f"http://127.0.0.1:{ports[name]}" for name in ("--ui-port", "--gateway-port"))
    codec = make_converter(Keyring.parse(KEYS)).payload_codec
    assert codec is not None
    plain = Payload(metadata={"encoding": b"json/plain"}, data=b'"words"')
    sealed = MessageToDict(Payloads(payloads=await codec.encode([plain])))
    command = ("dev", "--agents", "my_agent.py", *options)
    async with started(*command, folder=tmp_path, environment=kept | own) as dev, httpx.AsyncClient() as http:
        await dev.until("Ctrl+C")
        told = (await http.get(f"{ui}/api/v1/settings")).json()
        assert told["Codec"]["Endpoint"] == f"{gateway}/codec"
        for origin in (ui, ui.replace("127.0.0.1", "localhost")):
            read = await http.post(f"{gateway}/codec/decode", json=sealed, headers={"Origin": origin})
            assert (read.status_code, read.headers["access-control-allow-origin"]) == (200, origin)
            assert list(ParseDict(read.json(), Payloads()).payloads) == [plain]
        for origin in ("http://evil.example.com", f"http://evil.example.com:{ports['--ui-port']}", "http://localhost"):
            refused = await http.post(f"{gateway}/codec/decode", json=sealed, headers={"Origin": origin})
            assert (refused.status_code, "access-control-allow-origin" in refused.headers) == (403, False)


def test_without_keys_or_without_a_gateway_the_ui_is_told_of_none() -> None:
    assert codec_endpoint_of(Settings(), 8234) is None
    assert codec_endpoint_of(Settings(encryption_keys=KEYS), None) is None
    assert codec_endpoint_of(Settings(encryption_keys=KEYS), 8234) == "http://127.0.0.1:8234/codec"
