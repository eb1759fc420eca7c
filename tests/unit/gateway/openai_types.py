"""OpenAI's own types as the judge of what the door of the Responses API sends."""

from typing import Any, get_args

from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent
from pydantic import BaseModel

EVENTS: dict[str, type[BaseModel]] = {
    get_args(kind.model_fields["type"].annotation)[0]: kind for kind in get_args(get_args(ResponseStreamEvent)[0])
}
"""The types of stream events by their names."""


def judge_event(body: dict[str, Any]) -> None:
    """Validate a stream event.

    Raises:
        ValidationError: OpenAI's types refuse it.
        KeyError: They know no such event.
    """
    kind = EVENTS[body["type"]]
    assert body.keys() <= {*kind.model_fields, "name"}, (body["type"], body.keys() - {*kind.model_fields})
    kind.model_validate(body)


def judge_response(body: dict[str, Any]) -> Response:
    """The response, if OpenAI's types take it."""
    return Response.model_validate(body)


def judge_items(body: dict[str, Any]) -> ResponseItemList:
    """The list of items, if OpenAI's types take it."""
    return ResponseItemList.model_validate(body)
