"""The formats of providers' answers, and who reads which.

A wire's reader turns a whole reply into an :class:`~perdure.activities.models.wires.reply.Answered`. A stream is a
reply in pieces: it is put together to the whole reply of its wire, which the same reader reads. So an answer is the
same whole or streamed. Nothing here knows HTTP, litellm, or the agent.
"""

from collections.abc import Callable
from dataclasses import dataclass

from perdure.activities.models.provider_replies import Object
from perdure.activities.models.wires import chat, converse, gemini, messages, ollama, responses, usage
from perdure.activities.models.wires.reply import Answered, Counts, Pieces


@dataclass(frozen=True)
class Wire:
    """One format of answers.

    Attributes:
        name: Its name, for people.
        read: Reads a whole reply.
        counts_of: Reads the counts in a reply that may be no answer.
        pieces: Makes the reader of one stream.
    """

    name: str
    read: Callable[[Object], Answered]
    counts_of: Callable[[Object], Counts]
    pieces: Callable[[], Pieces]


CHAT = Wire("chat completions", chat.read, usage.counts_of, chat.ChatPieces)
MESSAGES = Wire("messages", messages.read, messages.counts_of, messages.MessagePieces)
GEMINI = Wire(
    "generateContent",
    gemini.read,
    gemini.counts_of,
    gemini.GeminiPieces,
)
CONVERSE = Wire("Converse", converse.read, converse.counts_of, converse.ConversePieces)
OLLAMA = Wire("Ollama", ollama.read, ollama.counts_of, ollama.OllamaPieces)
RESPONSES = Wire("Responses", responses.read, usage.counts_of, responses.ResponsePieces)

WIRES = (CHAT, MESSAGES, GEMINI, CONVERSE, OLLAMA, RESPONSES)
