"""The scripted model of the benchmarks, in a process of its own. What it does stands in the prompt.

``steps=20``: so many generations, each but the last with one call of ``read_page``. ``hang``: no answer.
``delay=0.2``: each answer takes so long. ``window=64000``: a longer input is refused. ``tool=wait_for:60``: the first
answer calls that tool. ``words=400``: the last answer has so many, which a stream sends one by one.

A conversation to be summarised is answered with these options, so that the work goes on behind the summary.
"""

import asyncio
import re
import sys

import uvloop

from perdure.llm.compaction import INSTRUCTIONS
from perdure.testing import ChatRequest, Fault, Reply, ScriptedProvider, call, faults, say
from perdure.testing.connection import Response
from perdure.testing.wires import Wire


def answer(request: ChatRequest) -> Reply:
    """The answer, from the request alone."""
    said = [str(message["content"]) for message in request.messages if message["role"] == "user"]
    options = dict(re.findall(r"(\w+)=(\S+)", said[0]))
    if is_summary(request):
        return say("<summary>" + " ".join(f"{name}={value}" for name, value in options.items()) + "</summary>")
    if request.tokens > int(options.get("window", request.tokens)):
        return Reply().after(faults.context_overflow())
    if "hang" in said[0]:
        return Reply(faults=(Fault(kind="hang"),) * 1000)
    steps, page = int(options.get("steps", 1)), next_page(request)
    if page >= steps - 1:
        reply = say("word " * int(options["words"]) if "words" in options else "done")
    elif "tool" in options:
        name, _, seconds = options["tool"].partition(":")
        reply = call((name, {"seconds": float(seconds)}))
    else:
        reply = call(("read_page", {"page": page, "size": int(options.get("size", 2_000))}))
    delay = float(options.get("delay", 0))
    return reply.after(Fault(kind="delay", seconds=delay)) if delay else reply


def is_summary(request: ChatRequest) -> bool:
    """Whether a conversation is to be summarised, of which the summary keeps the options of the prompt."""
    return str(request.messages[0]["content"]).startswith(INSTRUCTIONS[:40])


def next_page(request: ChatRequest) -> int:
    """By the last result: of a conversation that was compacted it is all that is sure to be left."""
    last = request.messages[-1]
    page = re.match(r"page (\d+):", str(last["content"])) if last["role"] == "tool" else None
    return request.index if page is None else int(page[1]) + 1


class Forgetful(ScriptedProvider):
    """A scripted model that keeps no requests: those of a turn of 5,000 steps are many gigabytes."""

    async def answer(self, wire: Wire, body: bytes, headers: dict[str, str]) -> Response:
        """The scripted answer."""
        answered = await super().answer(wire, body, headers)
        self.requests.clear()
        return answered


async def main() -> None:
    """Serve until killed; the first line printed is the base URL."""
    async with Forgetful(answer) as provider:
        sys.stdout.write(provider.url + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
