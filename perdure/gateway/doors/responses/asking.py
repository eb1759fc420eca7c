"""A response that asks once more, for what its turn still waits for: not all of its requests were replied to."""

from collections.abc import Collection, Iterator

from perdure.gateway.doors.responses.events import TurnFold, WireEvent
from perdure.gateway.doors.responses.objects import Item, asked_call, describe_part, texts_of
from perdure.gateway.doors.responses.places import NOTE, PARKED, SPACE, item_id


def ask_again(fold: TurnFold, segment: int, missing: Collection[str]) -> list[WireEvent]:
    """The stream events of a response that asks once more, for what it still waits for and nothing else."""
    response = fold.response(segment) or {}
    notes = {item_id(NOTE, fold.session, fold.turn, call) for call in missing}
    items = [item for item in fold.segments[segment - 1].items if asked_call(item) in missing or item["id"] in notes]
    begun: Item = {**response, "status": "in_progress", "output": []}
    told: list[tuple[str, Item]] = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
    ]
    for index, item in enumerate(items):
        about: Item = {"output_index": index, "item": item}
        text = [*_tell_again(item, index)] if item["type"] == "message" else []
        told += [("response.output_item.added", about), *text, ("response.output_item.done", about)]
    told.append(("response.completed", {"response": {**response, "output": [*items]}}))
    return [
        WireEvent(segment, {"type": kind, "sequence_number": fold.seq * SPACE + PARKED + at, **fields})
        for at, (kind, fields) in enumerate(told)
    ]


def _tell_again(message: Item, index: int) -> Iterator[tuple[str, Item]]:
    """The events of the text of a message that is told once more."""
    (text,) = texts_of([message])
    about: Item = {"item_id": message["id"], "output_index": index, "content_index": 0}
    yield "response.content_part.added", {**about, "part": describe_part("")}
    yield "response.output_text.delta", {**about, "delta": text, "logprobs": []}
    yield "response.output_text.done", {**about, "text": text, "logprobs": []}
    yield "response.content_part.done", {**about, "part": describe_part(text)}
