"""Messages of servers, put right where their meaning is clear, so that one odd part does not cost the whole message.

The SDK refuses a list of tools for one tool, and a result for one block. A message with a flaw of JSON-RPC it drops,
and its call then waits for the whole time-out. Messages that the SDK takes are not touched.
"""

import json
from collections.abc import Mapping
from typing import Any, TypeGuard, cast

from mcp_types import (
    INTERNAL_ERROR,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from mcp_types.methods import parse_server_result
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from perdure.contracts.values import JsonValue, describe_mistake, replace_surrogates, spell_json

Json = dict[str, Any]

LEFT_OUT = "perdure/left-out"
"""Key in a list's ``_meta``: the names of the tools that cannot be used, each with its reason."""

UNSTRUCTURED = "perdure/structured"
"""Key in a result's ``_meta``: structured content of a form that the protocol does not know."""

NO_ID = "perdure/no-id"
"""The id of a result that came without one."""

SIGN_OF_LIFE = "notifications/perdure/sign-of-life"
"""The method of an event that says nothing; the SDK passes it over."""

_WHOLE = "perdure/whole"
"""Key of a result that is not an object."""

_HINTS = ("title", "annotations", "icons", "execution", "_meta")
"""Fields of a tool that it can do without."""

_SHOWN = 500
"""Characters of an unknown block or an odd text that a message has."""

_KINDS = ("complete", "input_required")
"""Kinds of a result."""

_MORE = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
"""Fields that results of the newer generation have beside the older one's."""


def _is_object(value: object) -> TypeGuard[Json]:
    return isinstance(value, dict)


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def read_body(body: bytes) -> JSONRPCMessage:
    """Read the body of an HTTP answer, which is one message.

    Raises:
        ValidationError: It is none, also with its flaws mended.
    """
    try:
        return jsonrpc_message_adapter.validate_json(body, by_name=False)
    except ValidationError as error:
        return reread_message(error)


def read_event(data: str) -> JSONRPCMessage:
    """Read an event of a stream. Some servers send signs of life as events; these are read as a notification.

    Raises:
        ValidationError: It is a message, and cannot be read, also with its flaws mended.
    """
    try:
        return jsonrpc_message_adapter.validate_json(data, by_name=False)
    except ValidationError as error:
        if not _is_message(data):
            return JSONRPCNotification(jsonrpc="2.0", method=SIGN_OF_LIFE)
        return reread_message(error)


def _is_message(data: str) -> bool:
    """Whether the text is a message, or part of one."""
    if not data.lstrip().startswith(("{", "[")):
        return False
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return True
    return not _is_object(value) or bool({"id", "method", "result", "error"} & value.keys())


def reread_message(error: ValidationError) -> JSONRPCMessage:
    """Read a message that the SDK could not read.

    Raises:
        ValidationError: It is none, also with its flaws mended.
    """
    if (mended := _mend_message(_find_refused(error))) is None:
        raise error
    try:
        return jsonrpc_message_adapter.validate_python(mended, by_name=False)
    except ValidationError:
        raise error from None


def _find_refused(error: ValidationError) -> object:
    """The message that was refused: as text, or as what its JSON says."""
    found = error.errors(include_url=False)
    whole = (each["input"] for each in found if each["type"] in {"json_invalid", "missing", "model_type"})
    return next(whole, found[0]["input"])


def _mend_message(refused: object) -> Json | None:
    value = refused
    if isinstance(value, str | bytes):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if _is_list(value):  # a batch, which one generation of the protocol had
        value = value[0] if len(value) == 1 else None
    if not _is_object(value):
        return None
    message: Json = {**_with_whole_characters(value), "jsonrpc": "2.0"}
    if isinstance(message.get("id"), float) and message["id"].is_integer():
        message["id"] = int(message["id"])
    if "method" in message:
        return message
    if (error := message.get("error")) is not None:
        return {"jsonrpc": "2.0", "id": message.get("id"), "error": _mend_error(error)}
    if "result" not in message:
        return None
    result, number = message["result"], message.get("id")
    number = number if isinstance(number, int | str) else NO_ID
    return {**message, "id": number, "result": result if _is_object(result) else {_WHOLE: result}}


def _mend_error(error: object) -> Json:
    if not _is_object(error):
        return {"code": INTERNAL_ERROR, "message": _one_line(error)}
    given = error
    code, said = given.get("code"), given.get("message")
    try:
        code = int(cast("Any", code))
    except (TypeError, ValueError):
        code = INTERNAL_ERROR
    rest = {"data": given["data"]} if given.get("data") is not None else {}
    return {"code": code, "message": "" if said is None else _one_line(said), **rest}


def _one_line(value: object) -> str:
    return (
        value
        if isinstance(value, str)
        else json.dumps(spell_json(cast("JsonValue", value)), ensure_ascii=False)[:_SHOWN]
    )


def _with_whole_characters(value: Any) -> Any:  # noqa: ANN401 - raw JSON
    """The value without halves of characters, which the SDK's parser refuses."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if _is_list(value):
        return [_with_whole_characters(inner) for inner in value]
    if _is_object(value):
        pairs = value.items()
        return {replace_surrogates(name): _with_whole_characters(inner) for name, inner in pairs}
    return value


def mend_answer(message: JSONRPCResponse, method: str, version: str) -> JSONRPCResponse | JSONRPCError:
    """An answer to a request of ours, with the parts that the SDK would refuse put right or left out."""
    result = message.result
    if _fits(method, version, result):
        return message
    mends = {"tools/list": _mend_list, "tools/call": _mend_result, "initialize": _mend_greeting}
    if method in mends:
        return message.model_copy(update={"result": mends[method](result, version)})
    if _WHOLE in result:
        said = f"its answer to {method} is no object: {_one_line(result[_WHOLE])}"
        return JSONRPCError(jsonrpc="2.0", id=message.id, error={"code": INTERNAL_ERROR, "message": said})  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    return message


def _fits(method: str, version: str, result: Mapping[str, Any]) -> bool:
    try:
        parse_server_result(method, version, result)
    except ValidationError:
        return False
    except (KeyError, ValueError):  # a method or a version that the SDK does not check
        return _WHOLE not in result
    return True


def _completed(result: Json, version: str) -> Json:
    """The result without empty fields, and with those that the newer generation demands."""
    meta = result.get("_meta")
    kept = {name: value for name, value in result.items() if value is not None and name != "_meta"}
    modern = _MORE if version in MODERN_PROTOCOL_VERSIONS else {}
    return {**modern, **kept, "_meta": meta if _is_object(meta) else {}}


def _mend_greeting(result: Json, version: str) -> Json:
    kept = _completed(result, version)
    info, capabilities = kept.get("serverInfo"), kept.get("capabilities")
    named = {"name": "", "version": "", **(info if _is_object(info) else {})}
    info = {
        name: value if isinstance(value, str) else "" for name, value in named.items() if name in {"name", "version"}
    }
    return {**kept, "serverInfo": info, "capabilities": capabilities if _is_object(capabilities) else {}}


def _mend_list(result: Json, version: str) -> Json:
    kept = _completed(result, version)
    offered: object = kept.pop(_WHOLE, None) or kept.get("tools") or []
    if not _is_list(offered):
        return result
    cursor = kept.pop("nextCursor", None)
    if isinstance(cursor, str | int | float) and not isinstance(cursor, bool):
        kept["nextCursor"] = str(cursor)
    tools: list[Json] = []
    left_out: list[tuple[str, str]] = []
    for position, entry in enumerate(offered, start=1):
        tool, why = _read_tool(entry, version)
        if tool is not None:
            tools.append(tool)
        else:
            left_out.append((_name_of(entry, position), why))
    return {**kept, "tools": tools, "_meta": {**kept["_meta"], LEFT_OUT: left_out}}


def _name_of(entry: object, position: int) -> str:
    name = entry.get("name") if _is_object(entry) else None
    return name if isinstance(name, str) and name else f"number {position}"


def _read_tool(entry: object, version: str) -> tuple[Json | None, str]:
    """The tool, without hints that cannot be read; None with the reason if it cannot be used."""
    if not _is_object(entry):
        return None, "it is no object"
    given = entry
    tool = {name: value for name, value in given.items() if value is not None or name == "inputSchema"}
    schema = tool.get("inputSchema")
    if _is_object(schema) and schema.get("type") is None:
        tool["inputSchema"] = {**{key: value for key, value in schema.items() if value is not None}, "type": "object"}
    bare = {name: value for name, value in tool.items() if name not in _HINTS}
    if _find_flaw(tool, version) is None:
        return tool, ""
    why = _find_flaw(bare, version)
    return (bare, "") if why is None else (None, why)


def _find_flaw(tool: Json, version: str) -> str | None:
    try:
        parse_server_result("tools/list", version, {"tools": [tool], **_MORE})
    except ValidationError as error:
        return describe_mistake(error).removeprefix("tools.0.")
    return None


def _mend_result(result: Json, version: str) -> Json:
    kept = _completed(result, version)
    content = kept.pop(_WHOLE, None) if _WHOLE in kept else kept.get("content")
    blocks: list[Any] = content if _is_list(content) else [] if content is None else [content]
    kept["content"] = [_read_block(block, version) for block in blocks]
    modern = version in MODERN_PROTOCOL_VERSIONS
    if kept.get("resultType", "complete") not in _KINDS and not (modern and isinstance(kept["resultType"], str)):
        kept["resultType"] = "complete"
    if "isError" in kept:
        kept["isError"] = kept["isError"] in {True, "true", "True"} if _is_plain(kept["isError"]) else True
    if "structuredContent" in kept and not _fits_alone(kept, version):
        kept["_meta"] = {**kept["_meta"], UNSTRUCTURED: kept.pop("structuredContent")}
    return kept


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | bool)


def _fits_alone(kept: Json, version: str) -> bool:
    only: Json = {"content": [], "structuredContent": kept["structuredContent"], **_MORE}
    return _fits("tools/call", version, only)


def _read_block(block: object, version: str) -> Json:
    """The block; a line of text in its place if it cannot be read."""
    if isinstance(block, str):
        return {"type": "text", "text": block}
    if not _is_object(block):
        return _word(f"[a part of the result is no block: {_one_line(block)}]")
    given = {name: value for name, value in block.items() if value is not None}
    if isinstance(given.get("text"), str):
        given = {"type": "text", **given}
    plain = {name: value for name, value in given.items() if name not in {"annotations", "_meta", "icons"}}
    for form in (given, plain):
        if _fits("tools/call", version, {"content": [form], **_MORE}):
            return form
    kind = given.get("type")
    if kind == "text":
        text = given.get("text")
        return _word("[a block of text without text]" if text is None else _one_line(text))
    shown = json.dumps(spell_json(plain), ensure_ascii=False)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
    return _word(f"[a block of type {kind!r} that cannot be read: {shown}]")


def _word(text: str) -> Json:
    return {"type": "text", "text": text}
