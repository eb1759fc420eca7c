"""Pictures and files that a provider refuses: the call goes on without them, and so does the session.

Seen in the public trackers of coding agents, browsers' tools and gateways: screenshots pile up until a proxy answers
413; one picture that cannot be decoded makes every later message of a session fail; a limit of pictures in a request;
a model without eyes; a strict server that does not know ``reasoning_content``.
"""

import base64
import re
from collections.abc import Callable
from typing import Any

import pytest

from perdure import Agent, File, Image, tool
from perdure.store import Store
from perdure.testing import Fault, Reply, call, faults, say
from perdure.testing.script import ChatRequest
from tests.memory import Run
from tests.pictures import pdf_of, png_of

Judge = Callable[[ChatRequest], Fault | None]
REFUSED = "not shown: the model's provider refused it"


def shots(count: int, marks: tuple[bytes, ...] = ()) -> Any:
    """A tool that returns another picture with each call."""
    names = iter(marks or tuple(b"%d" % number for number in range(count)))

    @tool
    def shoot() -> Image:
        """Take a picture of the page."""
        return Image(png_of(mark=next(names)))

    return shoot


def data_in(request: ChatRequest) -> list[bytes]:
    """The pictures and files of a request."""
    found = re.findall(r"base64,([A-Za-z0-9+/=]+)", str(request.messages))
    return [base64.b64decode(text) for text in found]


def strict(judge: Judge, count: int, refusals: list[Fault]) -> Callable[[ChatRequest], Reply]:
    """A model that takes so many pictures, at a provider that refuses what ``judge`` says."""

    def answer(request: ChatRequest) -> Reply:
        fault = judge(request)
        results = sum(message["role"] == "tool" for message in request.messages)
        reply = call(("shoot", {})) if results < count else say("done")
        if fault is None:
            return reply
        refusals.append(fault)
        return reply.model_copy(update={"faults": (fault,) * 30})

    return answer


def seer(*tools: Any, **settings: Any) -> Agent:
    return Agent(name="seer", model="openai/eyes", tools=list(tools), **settings)


TOO_LARGE = [
    faults.page(413),
    faults.error(413, "Request exceeds the maximum size", "request_too_large"),
    faults.status(413),
]


@pytest.mark.parametrize("refusal", TOO_LARGE, ids=["a proxy's page", "anthropic", "bare"])
async def test_older_pictures_give_way_to_a_limit_of_bytes_and_the_next_message_knows(run: Run, refusal: Fault) -> None:
    limit, refusals = 2 * len(png_of(mark=b"0")), list[Fault]()

    def judge(request: ChatRequest) -> Fault | None:
        return refusal if sum(map(len, data_in(request))) > limit else None

    result = await run(seer(shots(6)), script=strict(judge, 6, refusals))
    assert (result["stop_reason"], result["output"]) == ("finished", "done")
    shown = data_in(run.requests[-1].request)
    assert shown[-1] == png_of(mark=b"5")
    assert 1 <= len(shown) <= 2
    again = await run(seer(shots(6)), script=strict(judge, 6, refusals), prompt="and now?")
    assert again["stop_reason"] == "finished"


@pytest.mark.parametrize(
    "words",
    [
        "At most 2 image(s) may be provided in one request.",
        "Too many images and documents: 3 > 2",
        "The number of images exceeds the maximum of 2",
        "exceeds the limit: maximum number of images is 2",
    ],
)
async def test_older_pictures_give_way_to_a_limit_of_pictures(run: Run, words: str) -> None:
    refusals: list[Fault] = []

    def judge(request: ChatRequest) -> Fault | None:
        return faults.error(400, words) if len(data_in(request)) > 2 else None

    result = await run(seer(shots(4)), script=strict(judge, 4, refusals))
    assert result["stop_reason"] == "finished"
    assert data_in(run.requests[-1].request)[-1] == png_of(mark=b"3")


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, "Could not process image"),
        (
            400,
            "messages.4.content.0.image.source.base64: The image was specified using the image/png media type, but...",
        ),
        (400, "You uploaded an unsupported image. Please make sure your image is valid."),
        (400, "Unable to process input image. Please retry."),
        (422, "cannot identify image file"),
        (400, "image dimensions exceed max allowed size: 8000 pixels"),
        (500, "Failed to load image or audio file"),
    ],
)
async def test_a_picture_that_is_refused_is_left_out_and_the_others_stay(run: Run, status: int, words: str) -> None:
    bad, refusals = png_of(mark=b"bad"), list[Fault]()

    def judge(request: ChatRequest) -> Fault | None:
        return faults.error(status, words) if bad in data_in(request) else None

    agent = seer(shots(3, (b"good", b"bad", b"fine")))
    result = await run(agent, script=strict(judge, 3, refusals))
    assert (result["stop_reason"], result["output"]) == ("finished", "done")
    last = run.requests[-1].request
    assert data_in(last) == [png_of(mark=b"good"), png_of(mark=b"fine")]
    assert REFUSED in str(last.messages)
    assert (await run(agent, script=strict(judge, 0, refusals), prompt="more?"))["stop_reason"] == "finished"
    assert list(await run.events("generation_error")) == []


@pytest.mark.parametrize(
    "words", ["The PDF specified is password protected.", "A maximum of 100 PDF pages may be provided."]
)
async def test_a_file_of_a_person_that_is_refused_is_left_out_and_the_picture_stays(run: Run, words: str) -> None:
    refusals: list[Fault] = []

    def judge(request: ChatRequest) -> Fault | None:
        return faults.error(400, words) if pdf_of(3) in data_in(request) else None

    prompt = ["Look.", Image(png_of()), File("a.pdf", pdf_of(3))]
    result = await run(seer(), script=strict(judge, 0, refusals), prompt=prompt)
    assert result["stop_reason"] == "finished"
    assert data_in(run.requests[-1].request) == [png_of()]
    assert (await run(seer(), script=strict(judge, 0, refusals), prompt="and?"))["stop_reason"] == "finished"


async def test_a_model_without_eyes_reads_lines(run: Run) -> None:
    refusals: list[Fault] = []

    def judge(request: ChatRequest) -> Fault | None:
        return faults.error(404, "No endpoints found that support image input") if data_in(request) else None

    result = await run(seer(shots(2)), script=strict(judge, 2, refusals), prompt=["Look.", Image(png_of())])
    assert result["stop_reason"] == "finished"
    assert str(run.requests[-1].request.messages).count(REFUSED) == 3


async def test_a_refusal_that_has_another_reason_ends_the_turn_and_blames_no_picture(run: Run) -> None:
    """The tries without pictures are refused in the same way, so the pictures come back with the next message."""
    refusals: list[Fault] = []
    fault = faults.error(400, "tools.0: the file schema is invalid, see image docs")
    script = strict(lambda _: fault, 0, refusals)
    result = await run(seer(), script=script, prompt=["Look.", Image(png_of())])
    assert (result["stop_reason"], result["reason_code"]) == ("error", "llm.request_error")
    await run(seer(), script=strict(lambda _: None, 0, refusals), prompt="again")
    assert data_in(run.requests[-1].request) == [png_of()]


async def test_a_refusal_without_pictures_is_asked_once(run: Run) -> None:
    result = await run(seer(), always=faults.error(400, "unknown image"))
    assert (result["reason_code"], len(run.requests)) == ("llm.request_error", 1)
    assert "perdure resume" in result["error"]


@pytest.mark.parametrize(
    ("model", "content", "most"),
    [
        ("bedrock/anthropic.claude-sonnet-4-5-20250929-v1:0", [File(f"{n}.pdf", pdf_of(n)) for n in range(1, 8)], 5),
        ("mistral/mistral-large-latest", [Image(png_of(mark=b"%d" % n)) for n in range(12)], 8),
        ("groq/llama-4-scout", [Image(png_of(mark=b"%d" % n)) for n in range(12)], 5),
    ],
    ids=["Bedrock's files", "Mistral's pictures", "Groq's pictures"],
)
async def test_the_latest_are_shown_as_far_as_the_provider_takes_them(
    run: Run, model: str, content: list[Any], most: int
) -> None:
    """Nothing is refused for it, not even once, and the model reads a line in place of each of the others."""
    agent = Agent(name="seer", model=model)
    for prompt in ("Look.", "Again."):
        result = await run(agent, script=lambda _: say("done"), prompt=[prompt, *content])
        assert (result["stop_reason"], len(run.last.requests)) == ("finished", 1), result["error"]
        last = run.requests[-1]
        assert last.refusal is None
        assert len(data_in(last.request)) == most
    assert str(run.requests[-1].request.messages).count("too many came after it") == 2 * len(content) - most


def too_large(request: ChatRequest) -> Fault | None:
    return faults.status(413) if sum(map(len, data_in(request))) > 2 * len(png_of(mark=b"0")) else None


def too_many(request: ChatRequest) -> Fault | None:
    return faults.error(400, "Too many images: at most 2") if len(data_in(request)) > 2 else None


def unreadable(request: ChatRequest) -> Fault | None:
    return faults.error(400, "Could not process image") if png_of(mark=b"1") in data_in(request) else None


def blind(request: ChatRequest) -> Fault | None:
    return faults.error(404, "No endpoints found that support image input") if data_in(request) else None


def unsigned(request: ChatRequest) -> Fault | None:
    """A provider that no longer takes the reasoning that it has written."""
    said = any("reasoning_content" in message for message in request.messages)
    return faults.error(400, "reasoning_content: invalid signature in thinking block") if said else None


@pytest.mark.parametrize("judge", [too_large, too_many, unreadable, blind, unsigned])
async def test_a_worker_that_never_saw_the_session_leaves_out_at_once_what_gave_way(
    run: Run, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each turn in memory has a worker of its own; an event of the session tells it, and people too."""
    refusals: list[Fault] = []
    model = strict(judge, 4, refusals)

    def thinking(request: ChatRequest) -> Reply:
        return model(request).model_copy(update={"message": {"reasoning_content": "hm"}})

    agent = Agent(name="seer", model="hosted_vllm/eyes", tools=[shots(4)])
    result = await run(agent, script=thinking)
    assert result["stop_reason"] == "finished", result["error"]
    assert refusals
    told = await run.events("generation_adapted")
    assert told
    assert told[-1]["reason"]
    before, looked, look = len(refusals), list[str](), Store.adaptations

    async def watched(store: Store, session: str) -> Any:
        looked.append(session)
        return await look(store, session)

    monkeypatch.setattr(Store, "adaptations", watched)
    for prompt in ("more?", "and more?"):
        assert (await run(agent, script=thinking, prompt=prompt))["stop_reason"] == "finished"
    assert len(refusals) == before, "a worker learnt it again"
    assert await run.events("generation_adapted") == told
    assert looked == [run.session] * 2, "a worker looks once"


async def test_what_another_model_has_refused_is_shown_to_this_one(run: Run) -> None:
    refusals: list[Fault] = []
    await run(seer(shots(2)), script=strict(unreadable, 2, refusals))
    assert png_of(mark=b"1") not in data_in(run.requests[-1].request)
    other = Agent(name="seer", model="openai/other-eyes")
    result = await run(other, script=lambda _: say("I see both"), prompt="and you?")
    assert result["stop_reason"] == "finished", result["error"]
    assert data_in(run.requests[-1].request) == [png_of(mark=b"0"), png_of(mark=b"1")]
