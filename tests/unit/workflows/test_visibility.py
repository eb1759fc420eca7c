"""What is said of a turn in the Temporal UI."""

import pytest

from perdure.client.connect import DATA_CONVERTER
from perdure.contracts.tools import CallTool
from perdure.workflows import visibility

LIMIT = 400
"""Bytes of a summary's payload, as the server's own configuration has it."""


@pytest.mark.parametrize("text", ['{"city": "Lyon"}', "x" * 500, "\N{GRINNING FACE}" * 200, '"' * 500, "\x01" * 500])
def test_a_summary_fits_its_row_and_the_servers_limit(text: str) -> None:
    call = CallTool(session="s", turn=1, step=1, call_id="c", definition="d", arguments=text)
    summary = visibility.tool_summary(call)
    assert text.startswith(summary)
    assert len(summary) <= visibility.SUMMARY_CHARACTERS
    (payload,) = DATA_CONVERTER.payload_converter.to_payloads([summary])
    assert payload.ByteSize() <= LIMIT
