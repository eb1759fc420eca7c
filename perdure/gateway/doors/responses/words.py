"""Words of protocols, in what is refused."""

from collections.abc import Mapping
from dataclasses import dataclass

from perdure.contracts.input_requests import Need


@dataclass(frozen=True, kw_only=True)
class Words:
    """A protocol's words in refusals.

    Attributes:
        field: Field of the request that replies stand in.
        thing: Word for a segment of a turn.
        needs: What replies to each need.
        instead: What to do with a reply that nothing waits for.
        is_lenient: Whether conversations may be shown in other words than turns have said them, and histories as no
            provider takes them, which are made to fit.
    """

    field: str
    thing: str
    needs: Mapping[Need, str]
    instead: str = "send a message of the user"
    is_lenient: bool = False


OPENAI_WORDS = Words(
    field="input",
    thing="response",
    needs={
        "approval": "an mcp_approval_response",
        "answer": "a function_call_output",
        "result": "a function_call_output",
    },
    instead="name the response that asked for it as previous_response_id",
)
