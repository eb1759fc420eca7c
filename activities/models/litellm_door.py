"""The door to every other provider: litellm's ``acompletion``, with its HTTP exchanges guarded.

What it returns counts only if perdure could not read the reply itself (``perdure.activities.models.provider_http``).
"""

from collections.abc import Mapping
from typing import Any, cast

import litellm

from perdure import libraries
from perdure.activities.models import litellm_patches
from perdure.activities.models.provider_http import Exchange
from perdure.activities.models.provider_replies import InvalidReplyError
from perdure.activities.models.reasoning import without_own_fields
from perdure.activities.models.wires import chat
from perdure.activities.models.wires.reply import Answered
from perdure.contracts.plain import to_plain

libraries.check_libraries(libraries.OF_LITELLM)
litellm_patches.quiet()


async def complete(arguments: Mapping[str, Any], exchange: Exchange) -> Any:  # noqa: ANN401 - litellm's
    """Return litellm's result of the call; nothing for a stream that was read already."""
    messages = [without_own_fields(message) for message in arguments["messages"]]
    arguments = {**arguments, "messages": messages}
    if exchange.shown is None:
        return await litellm.acompletion(**arguments)
    stream: Any = await litellm.acompletion(**arguments, stream=True, stream_options={"include_usage": True})
    if exchange.answered is None or exchange.keeps_bytes:
        async for _ in stream:  # callbacks that are told of a stream are told at its end
            pass
    return None


def read(response: Any) -> Answered:  # noqa: ANN401 - litellm's
    """The answer that litellm read itself, of a provider whose format perdure does not know.

    Raises:
        InvalidReplyError: It has not the shape of an answer.
    """
    try:
        whole = cast("dict[str, Any]", to_plain(response.model_dump(mode="json")))
    except Exception as error:
        msg = "the reply has not the shape of an answer"
        raise InvalidReplyError(msg) from error
    for choice in whole.get("choices") or ():
        extra: dict[str, Any] = choice["message"].get("provider_specific_fields") or {}
        choice["message"] = {**extra, **choice["message"]}
    return chat.read(whole)
