"""An MCP server of the older protocol generation over standard input and output: ``mcp_peer.py [FAULT]``.

Without packages, so that it starts at once and each fault is in the test's hands. It writes what it is asked to the
file named by ``MCP_JOURNAL``.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

Json = dict[str, Any]

FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
JOURNAL = os.environ.get("MCP_JOURNAL", "")
ANY = {"type": "object", "properties": {}}
HINTS = {"whoami": {"readOnlyHint": True}, "die_once": {"idempotentHint": True}}
ERRORS = {
    "session": {"code": -32600, "message": "the browser session ended after the payment was made"},
    "own code": {"code": -32000, "message": "no funds"},
}
TOOLS = [
    "echo",
    "whoami",
    "environment",
    "slow",
    "pause",
    "hold",
    "fail",
    "die",
    "die_once",
    "big",
    "progress",
    "files",
    "strange.name/1",
]
SECRET = os.environ.get("KEY", "")
_lock = threading.Lock()
_hung = threading.Event()
_learnt = threading.Event()


def note(text: str) -> None:
    if JOURNAL:
        with Path(JOURNAL).open("a") as file:
            file.write(text + "\n")


def send(message: Json) -> None:
    with _lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def text(value: str, **more: object) -> Json:
    return {"content": [{"type": "text", "text": value}], **more}


def first_time(what: str) -> bool:
    """Whether no process of this journal has done it before."""
    marker = Path(f"{JOURNAL}.{what}")
    if marker.exists():
        return False
    marker.touch()
    return True


def told(what: str) -> bool:
    """Whether the test has said it."""
    return Path(f"{JOURNAL}.{what}").exists()


def hold() -> None:
    """Give no answer until the test lets it go on."""
    while not told("go on"):
        time.sleep(0.01)


def described(name: str) -> str:
    return f"does {name}" + ("!" * 10_000_000 if FAULT == "wordy" and name == "echo" else "")


def learnt() -> Json:
    """The list of a server that has another one now."""
    names = ("echo", "whoami", "learnt")
    return {"tools": [{"name": name, "description": f"now does {name}", "inputSchema": ANY} for name in names]}


def listed() -> Json:
    if _learnt.is_set():
        return learnt()
    if FAULT == "tells":
        properties = {"a": {"type": "string", "default": f"with {SECRET}"}, f"for {SECRET}": {"type": "string"}}
        schema = {"type": "object", "properties": properties, "required": [f"for {SECRET}"]}
        return {"tools": [{"name": "echo", "description": f"uses {SECRET}", "inputSchema": schema}]}
    names = {"twice": [*TOOLS, "echo"], "many": [f"tool_{number}" for number in range(30_000)]}.get(FAULT, TOOLS)
    return {
        "tools": [
            {"name": name, "description": described(name), "inputSchema": ANY, "annotations": HINTS.get(name, {})}
            for name in names
        ]
    }


def files() -> Json:
    return {
        "content": [
            {"type": "text", "text": "two files"},
            {"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"},
            {
                "type": "resource",
                "resource": {"uri": "file:///a.bin", "blob": "d29ybGQ=", "mimeType": "application/x-a"},
            },
            {"type": "resource", "resource": {"uri": "file:///a.txt", "text": "some text"}},
        ]
    }


def call(name: str, arguments: Json, token: object) -> Json | None:  # noqa: C901 - one line or two for each tool
    note(f"call {name} {arguments.get('session', '')}".rstrip())
    if FAULT == "loud":
        sys.stderr.write(f"called with {json.dumps(arguments)}\n")
        sys.stderr.flush()
    match name:
        case "whoami":
            if arguments.get("held") and first_time(arguments["session"]):
                hold()
            return text(str(os.getpid()))
        case "echo" if FAULT == "learns":
            _learnt.set()
            send({"method": "notifications/tools/list_changed"})
        case "environment":
            return text(json.dumps(dict(os.environ)))
        case "slow":
            if FAULT == "hangs":
                _hung.set()
            return None
        case "pause":
            time.sleep(arguments.get("seconds", 0.3))
        case "hold":
            hold()
        case "fail":
            return text("it did not work", isError=True)
        case "die":
            sys.stderr.write("the last words of the peer\n")
            sys.stderr.flush()
            os._exit(3)
        case "die_once":
            if first_time("died"):
                os._exit(3)
        case "big":
            return text("x" * int(arguments["size"]))
        case "progress":
            for done in (1, 2):
                params = {"progressToken": token, "progress": done, "total": 2, "message": "half a step"}
                send({"method": "notifications/progress", "params": params})
        case "files":
            return files()
        case _:
            pass
    return text(f"{name}: {json.dumps(arguments)}")


def called(number: int, params: Json) -> None:
    if FAULT in ERRORS:
        note(f"call {params['name']}")
        send({"id": number, "error": ERRORS[FAULT]})
        return
    result = call(params["name"], params.get("arguments") or {}, (params.get("_meta") or {}).get("progressToken"))
    if result is not None and FAULT == "latin":
        spelt = json.dumps({"jsonrpc": "2.0", "id": number, "result": text("caf?")}).encode()
        sys.stdout.buffer.write(spelt.replace(b"?", b"\xe9") + b"\n")
        sys.stdout.flush()
    elif result is not None:
        send({"id": number, "result": result})


def answer(message: Json) -> None:
    method, number, params = message.get("method"), message.get("id"), message.get("params") or {}
    if method == "initialize":
        info = {"name": "peer", "version": "1"}
        version = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {"listChanged": FAULT == "learns"}},
            "serverInfo": info,
        }
        send({"id": number, "result": version})
    elif method == "tools/list":
        note("list")
        if FAULT == "refuses":
            send({"id": number, "error": {"code": -32603, "message": f"bad credential {SECRET}"}})
        elif FAULT == "deaf" and first_time("deaf"):
            _hung.set()
        elif FAULT != "moody" or not told("be silent"):
            send({"id": number, "result": listed()})
    elif method == "tools/call":
        if traceparent := (params.get("_meta") or {}).get("traceparent"):
            note(f"traceparent {traceparent}")
        called(message["id"], params)
    elif method == "notifications/cancelled":
        note(f"cancelled {params.get('requestId')}")
    elif number is not None and FAULT != "ignores":
        send({"id": number, "error": {"code": -32601, "message": f"no method {method}"}})


def main() -> None:
    note(f"started {os.getpid()}")
    if FAULT == "stubborn":  # ends neither by a signal nor by the end of its input
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if FAULT == "dies":
        for number in range(60):
            sys.stderr.write(f"line {number}\n")
        sys.exit("cannot go on")
    if FAULT == "login":
        sys.exit("error: not logged in, run the login command")
    greeted = False
    for line in sys.stdin:
        if FAULT == "silent" or _hung.is_set():
            continue
        if FAULT == "garbage":
            sys.stdout.write("Welcome to the server!\n")
        message = json.loads(line)
        if FAULT == "strict" and not greeted and message["method"] != "initialize":
            sys.exit("expected initialize first")
        greeted = True
        thread = threading.Thread(target=answer, args=(message,), daemon=True)
        thread.start()
        thread.join(None if FAULT == "one at a time" else 0)
    while FAULT == "stubborn":
        time.sleep(1)


if __name__ == "__main__":
    main()
