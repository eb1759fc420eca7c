"""The rule files against judges that nobody here wrote: AWS's model of its service, and the types of OpenAI's library.

What a case keeps, its judge takes; each list names the rules whose broken request the judge refuses as well.
"""

import base64
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import botocore.session  # type: ignore[import-untyped]
import pytest
from botocore.model import Shape  # type: ignore[import-untyped]
from botocore.validate import ParamValidator  # type: ignore[import-untyped]
from openai.types.chat.completion_create_params import CompletionCreateParams
from openai.types.responses import ResponseCreateParams
from pydantic import TypeAdapter, ValidationError

from tests.unit.testing.rule_cases import chat, converse, responses

Json = Any


@cache
def converse_input() -> Any:
    service = botocore.session.get_session().get_service_model("bedrock-runtime")
    return service.operation_model("Converse").input_shape


def with_bytes(value: Json) -> Json:
    """A body as botocore takes it, with bytes in place of base64."""
    if isinstance(value, list):
        return [with_bytes(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {name: base64.b64decode(part) if name == "bytes" else with_bytes(part) for name, part in value.items()}


def breaches(shape: Shape, value: Json) -> Iterator[str]:
    """Patterns, enums and maxima of the service's model, which botocore does not check itself."""
    limits = shape.metadata
    if isinstance(value, str):
        if "pattern" in limits and re.fullmatch(limits["pattern"], value) is None:
            yield f"{value!r} is not {limits['pattern']}"
        if "enum" in limits and value not in limits["enum"]:
            yield f"{value!r} is none of {limits['enum']}"
    size = value if isinstance(value, int | float) else len(value) if isinstance(value, str | list) else 0
    if "max" in limits and size > limits["max"]:
        yield f"{size} is above {limits['max']}"
    if shape.type_name == "structure" and isinstance(value, dict):
        for name, part in value.items():
            if name in shape.members and not getattr(shape, "is_document_type", False):
                yield from breaches(shape.members[name], part)
    if shape.type_name == "list" and isinstance(value, list):
        for part in value:
            yield from breaches(shape.member, part)


def judge_converse(body: Json) -> str:
    sent = with_bytes({"modelId": "m", **body})
    report = ParamValidator().validate(sent, converse_input())
    return "; ".join([*([report.generate_report()] if report.has_errors() else []), *breaches(converse_input(), sent)])


CHAT: TypeAdapter[Any] = TypeAdapter(CompletionCreateParams)
RESPONSES: TypeAdapter[Any] = TypeAdapter(ResponseCreateParams)


def read(value: Json) -> None:
    """Read what pydantic leaves unread, such as the parts of a message."""
    if isinstance(value, dict):
        for part in value.values():
            read(part)
    elif not isinstance(value, str | bytes) and hasattr(value, "__iter__"):
        for part in value:
            read(part)


def judge_by(types: TypeAdapter[Any]) -> Callable[[Json], str]:
    def judge(body: Json) -> str:
        try:
            read(types.validate_python(json.loads(json.dumps(body))))
        except ValidationError as error:
            return str(error)
        return ""

    return judge


JUDGES: dict[str, tuple[dict[str, Any], Callable[[Json], str], set[str]]] = {
    "botocore": (
        converse.BEDROCK,
        judge_converse,
        {
            *("bc.choice", "bc.doc.format", "bc.image.format", "bc.inference", "bc.sampling", "bc.tool.id"),
            *("bc.tool.name", "bc.tools.min", "bc.union", "bc.unknown"),
        },
    ),
    "openai's chat types": (
        {**chat.CHAT, **chat.OPENAI, **chat.AZURE},
        judge_by(CHAT),
        {"oc.roles", "oc.tool.content.parts"},
    ),
    "openai's response types": (responses.RESPONSES, judge_by(RESPONSES), set()),
}


@pytest.mark.parametrize("name", JUDGES)
def test_a_judge_from_outside_takes_what_the_rules_take_and_refuses_its_part(name: str) -> None:
    cases, judge, known = JUDGES[name]
    strange = {rule: judge(keeps) for rule, (_, keeps) in cases.items()}
    assert {rule: said for rule, said in strange.items() if said} == {}
    assert {rule for rule, (breaks, _) in cases.items() if judge(breaks)} == known
