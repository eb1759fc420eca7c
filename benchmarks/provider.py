"""The scripted model of the benchmarks, in a process of its own. What it does stands in the prompt.

``steps=20``: so many generations, each but the last with one call of ``read_page``. ``hang``: no answer.
``delay=0.2``: each answer takes so long. ``tool=wait_for:60``: the first answer calls that tool.
"""

import asyncio
import re
import sys

import uvloop

from perdure.testing import ChatRequest, Fault, Reply, ScriptedProvider, call, say


def answer(request: ChatRequest) -> Reply:
    """The answer, from the request alone."""
    prompt = next(str(message["content"]) for message in request.messages if message["role"] == "user")
    options = dict(re.findall(r"(\w+)=(\S+)", prompt))
    if "hang" in prompt:
        return Reply(faults=(Fault(kind="hang"),) * 1000)
    steps = int(options.get("steps", 1))
    if request.index >= steps - 1:
        reply = say("done")
    elif "tool" in options:
        name, _, seconds = options["tool"].partition(":")
        reply = call((name, {"seconds": float(seconds)}))
    else:
        reply = call(("read_page", {"page": request.index, "size": int(options.get("size", 2_000))}))
    delay = float(options.get("delay", 0))
    return reply.after(Fault(kind="delay", seconds=delay)) if delay else reply


class Forgetful(ScriptedProvider):
    """A scripted model that keeps no requests: those of a turn of 5,000 steps are many gigabytes."""

    async def answer(self, body: bytes, headers: dict[str, str]) -> tuple[Fault | None, bytes]:
        """The scripted answer."""
        answered = await super().answer(body, headers)
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
