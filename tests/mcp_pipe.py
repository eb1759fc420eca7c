"""An MCP server over standard input and output: ``mcp_pipe.py FILE``, with the lines to answer each method with."""

import json
import sys
from pathlib import Path

ANSWERS: dict[str, list[str]] = json.loads(Path(sys.argv[1]).read_text())


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        number = json.dumps(message["id"])
        unknown = '{"jsonrpc": "2.0", "id": $ID, "error": {"code": -32601, "message": "no such method"}}'
        for answer in ANSWERS.get(message["method"], [unknown]):
            text = answer.replace('"$ID"', number).replace("$ID", number)
            sys.stdout.buffer.write(text.encode(errors="surrogatepass") + b"\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
