"""The door to every other provider: litellm's ``acompletion``, as it is, for whole answers.

Bounds, streams and the reading of odd replies are litellm's own here. Its settings are public ones.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import litellm

from perdure.activities.models.provider_replies import InvalidReplyError
from perdure.activities.models.reasoning import without_own_fields
from perdure.activities.models.wires import chat
from perdure.activities.models.wires.reply import Answered, Source
from perdure.contracts.plain import to_plain

litellm.suppress_debug_info = True
litellm.turn_off_message_logging = True
for _name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):  # the worker's own handlers have their records
    logging.getLogger(_name).handlers.clear()
    logging.getLogger(_name).setLevel(logging.WARNING)


async def complete(arguments: Mapping[str, Any]) -> Answered:
    """The answer to a call.

    Raises:
        InvalidReplyError: It has not the shape of an answer.
        Exception: Whatever litellm raises.
    """
    messages = [without_own_fields(message) for message in arguments["messages"]]
    return read(await litellm.acompletion(**{**arguments, "messages": messages}))


def read(response: Any) -> Answered:  # noqa: ANN401 - litellm's
    """The answer in what litellm, or an author's own provider in it, has returned.

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
    return replace(chat.read(whole), source=Source.of(whole))
