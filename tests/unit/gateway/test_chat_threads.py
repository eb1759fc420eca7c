"""S-90: a front end shows a branch by words alone; the session knows which of its turns that is."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.gateway.doors.chat.requests import ChatBody, read_chat
from perdure.gateway.doors.chat.threads import (
    Found,
    Node,
    Tree,
    digest_of,
    end_of_shown,
    heard_in,
    page_of,
    read_reply,
    read_rounds,
)
from perdure.gateway.doors.responses.places import wire_call

WORDS = "hello", "go on", "why?"


def find(nodes: Sequence[Node], *messages: Any) -> Found | None:
    body = ChatBody.model_validate({"model": "tester", "messages": [*map(message, messages)]})
    rounds, said = read_rounds(read_chat(body).entries, "s")
    return Tree(nodes).find(rounds, [heard_in(entry) for entry in said])


def message(told: Any) -> dict[str, Any]:
    """A message of the user; with a > before it, one of the agent."""
    if isinstance(told, dict):
        return told
    return {"role": "assistant", "content": told[1:]} if told.startswith(">") else {"role": "user", "content": told}


def node(turn: int, parent: int, words: str, answer: str = "", **more: Any) -> Node:
    """A turn that the words began, behind a line of instructions."""
    heard = [(f"Be kind.\n\n{words}", 0)]
    return Node(turn=turn, parent=parent, words=digest_of((words, 0)), heard=heard, answer=answer, **more)


def wrapped(turn: int, parent: int, sent: str, answer: str = "") -> Node:
    """A turn that a template began, with a message in it."""
    return Node(turn=turn, parent=parent, words=digest_of((sent, 0)), heard=[(sent, 0)], answer=answer)


def silent(turn: int, parent: int, answer: str = "") -> Node:
    return Node(turn=turn, parent=parent, heard=[], answer=answer, is_shown=False)


LINE = [node(1, 0, "hello", "Hi!"), node(2, 1, "a river?", "Rhine"), node(3, 2, "another?", "Elbe")]


@pytest.mark.parametrize(
    ("shown", "turn", "taken"),
    [
        pytest.param(["hello", ">Hi!", "a river?", ">Rhine", "another?", ">Elbe", "more"], 3, 0, id="goes on"),
        pytest.param(["hello", ">Hi!", "a river?", ">Rhine", "another?"], 2, 0, id="another answer"),
        pytest.param(["hello", ">Hi!", "a lake?"], 1, 0, id="an edit"),
        pytest.param(["hello there"], 0, 0, id="an edit of the first"),
        pytest.param(["another?", ">Elbe", "more"], 3, 0, id="a window"),
        pytest.param([">Elbe", "more"], 3, 0, id="a window that begins with an answer"),
        pytest.param(["hello", ">Hi!", "another?", ">Elbe", "more"], None, 0, id="a message in the middle deleted"),
        pytest.param(["hello", ">Hi!", "a river?", ">in other words", "more"], 2, 0, id="an answer in other words"),
        pytest.param(["hello", ">Hi!", "a river?", "another?", "more"], 3, 2, id="answers that did not come"),
        pytest.param(["hi", ">Hi!", "more"], None, 0, id="an edit that is shown with the old answer"),
        pytest.param([">never said", "more"], None, 0, id="a window of nothing that was said"),
        pytest.param(["hello \r\n", ">Hi!\r\n", "a lake?"], 1, 0, id="other ends of lines"),
    ],
)
def test_what_is_shown_is_found(shown: Sequence[str], turn: int | None, taken: int) -> None:
    """S-90."""
    found = find(LINE, *shown)
    assert (None if found is None else found.turn) == turn
    assert found is None or found.taken == taken


@pytest.mark.parametrize(
    ("nodes", "shown", "turn", "end"),
    [
        pytest.param([node(1, 0, "go", "a"), node(2, 0, "go", "b")], ["go", ">a", "on"], 1, 1, id="the older answer"),
        pytest.param(
            [node(1, 0, "go", "a"), node(2, 0, "go", "a")], ["go", ">a", "on"], 2, 2, id="the later of equals"
        ),
        pytest.param([wrapped(1, 0, "<doc>x</doc>\ngo", "a")], ["go", ">a", "on"], 1, 1, id="behind a document"),
        pytest.param([wrapped(1, 0, "go\n<!-- now -->", "a")], ["go", ">a", "on"], 1, 1, id="before a note"),
        pytest.param([wrapped(1, 0, "# Task\n<q>go</q>\n", "a")], ["go", ">a", "on"], 1, 1, id="in a template"),
        pytest.param([node(1, 0, "b", "x"), node(2, 0, "a\n\nb", "x")], ["b", ">x", "on"], 1, 1, id="not a longer one"),
        pytest.param([node(1, 0, "one\n\ntwo", "a")], ["one", "two", ">a", "on"], 1, 1, id="two heard together"),
        pytest.param([node(1, 0, "go", "a"), silent(2, 1)], ["go", ">a", "on"], 1, 2, id="an operator went on"),
        pytest.param(
            [node(1, 0, "go", "a"), silent(2, 1), node(3, 1, "on")], ["go", ">a", "no"], 1, 2, id="beside one"
        ),
        pytest.param([node(1, 0, "go"), silent(2, 1, "b")], ["go", ">b", "on"], 1, 2, id="results began the answer"),
        pytest.param([Node(turn=1, parent=0, heard=None, answer="a")], ["go", ">a", "on"], 1, 1, id="a deleted log"),
    ],
)
def test_turns_that_nobody_sees_belong_to_those_before(
    nodes: Sequence[Node], shown: Sequence[str], turn: int, end: int
) -> None:
    """S-90."""
    found = find(nodes, *shown)
    assert found is not None
    assert (found.turn, Tree(nodes).end_of(found.turn)) == (turn, end)


@pytest.mark.parametrize(("sent", "shown"), [("Do not do this:\ngo", "go"), ("a\n\nb", "b"), ("ab", "a")])
def test_a_part_of_a_message_is_an_edited_one(sent: str, shown: str) -> None:
    """S-90: what the user has deleted of it is not read again."""
    assert find([node(1, 0, sent, "done")], shown, ">done", "on") is None


def test_texts_of_calls_stand_before_answers_where_they_are_told() -> None:
    """S-90."""
    tree = [node(1, 0, "go", "Hi!"), node(2, 0, "go", "Ho!")]
    for tells_calls in (True, False):
        assert Tree(tree, tells_calls=tells_calls).has_said(1, ["look() → 7\n\nHi!"]) is tells_calls


def test_the_ids_of_calls_say_which_turn_it_is() -> None:
    """S-90: words that are the same twice are told apart by them, and a window may begin with them."""
    nodes = [node(1, 0, "go"), silent(2, 1, "a"), node(3, 0, "go"), silent(4, 3, "a")]
    for turn in (1, 3):
        call = {"id": wire_call("s", turn, "call_1"), "type": "function", "function": {"name": "f", "arguments": "{}"}}
        calls: Any = {"role": "assistant", "tool_calls": [call]}
        result: Any = {"role": "tool", "tool_call_id": call["id"], "content": "7"}
        for shown in (["go", calls, result, ">a", "on"], [calls, result, ">a", "on"]):
            found = find(nodes, *shown)
            assert found is not None
            assert found.turn == turn


def test_what_is_said_to_a_request_is_no_turn() -> None:
    """S-90: the words of a decision, and what is said while a turn waits, begin none; what begins one counts."""
    ask = f">pay waits for an approval: {{}}\nhttps://x{page_of('s')}?asked=1.1"
    nodes = [node(1, 0, "go", "paid")]
    for shown in (["go", ask, "yes", ">paid", "on"], ["go", ask, "hello?", ask, "yes", ">paid", "on"]):
        found = find(nodes, *shown)
        assert found is not None
        assert found.turn == 1
    found = find([*nodes, node(2, 1, "and?", "no")], "go", ask, "and?", ">no", "on")
    assert found is not None
    assert found.turn == 2


@given(st.data())
def test_every_branch_is_found_again(data: st.DataObject) -> None:
    """S-90: whatever a person says, edits or has answered again, in whatever window: the turn behind is the one meant.

    Answers are all different; words are not.
    """
    nodes: list[Node] = []
    for turn in range(1, data.draw(st.integers(2, 10)) + 1):
        parent = data.draw(st.integers(0, turn - 1))
        nodes.append(node(turn, parent, data.draw(st.sampled_from(WORDS)), f"answer {turn}"))
    at = meant = data.draw(st.integers(0, len(nodes)))
    shown: list[str] = ["something new"]
    while at:
        told = nodes[at - 1]
        (words, _), *_rest = told.heard or ()
        shown, at = [words.rpartition("\n\n")[2], f">{told.answer}", *shown], told.parent
    rounds = (len(shown) - 1) // 2
    kept = data.draw(st.integers(1, rounds)) if rounds else 0
    half = data.draw(st.integers(0, 1)) if rounds else 0
    found = find(nodes, *shown[2 * (rounds - kept) + half :])
    assert found is not None
    assert found.turn == meant


@pytest.mark.parametrize(
    ("words", "needs", "told"),
    [
        ("Yes.", {"a": "approval", "b": "approval"}, [(True, None), (True, None)]),
        ("approve", {"a": "approval"}, [(True, None)]),
        ("no, it is too much", {"a": "approval"}, [(False, None)]),
        ("yes, but only half", {"a": "approval"}, []),
        ("nothing", {"a": "approval"}, []),
        ("no problem, go ahead", {"a": "approval"}, []),
        ("y", {"a": "approval"}, []),
        ("sure", {"a": "approval"}, []),
        ("blue", {"a": "answer"}, [(False, "blue")]),
        ("yes", {"a": "answer", "b": "answer"}, []),
        ("yes", {"a": "approval", "b": "answer"}, []),
        ("yes", {"a": "result"}, []),
    ],
)
def test_words_are_replies_only_where_they_can_mean_nothing_else(
    words: str, needs: dict[str, Any], told: list[Any]
) -> None:
    """S-90."""
    assert [(one.approve, one.output) for one in read_reply(words, needs)] == told
    if words.startswith("no,"):
        assert read_reply(words, needs)[0].reason == "it is too much"


@pytest.mark.parametrize(
    ("texts", "shown", "end"),
    [
        (["Onemoment.", "Done."], "Onemom", (0, 6)),
        (["Onemoment.", "Done."], "Onemoment.", (0, 10)),
        (["Onemoment.", "Done."], "Onemoment.Do", (1, 2)),
        (["Onemoment.", "Done."], "Done.", (1, 5)),
        (["Onemoment.", "", "Done."], "Onemoment.D", (2, 1)),
        (["Onemoment.", "Done."], "Twomoments.", None),
        (["Onemoment.", "Done."], "moment.", None),
        (["Onemoment."], "Onemoment.Done.", None),
        ([], "Done.", None),
    ],
)
def test_the_end_of_what_is_shown_is_found(texts: list[str], shown: str, end: tuple[int, int] | None) -> None:
    """S-91: a front end shows the beginning of an answer, or several as one."""
    assert end_of_shown(texts, shown) == end


@given(texts=st.lists(st.text("ab"), min_size=1, max_size=5), data=st.data())
def test_the_end_of_what_is_shown_is_an_end_of_it(texts: list[str], data: st.DataObject) -> None:
    """S-91: whatever the texts are, what stands before the place is what is shown."""
    first = data.draw(st.integers(0, len(texts) - 1))
    whole = "".join(texts[first:])
    shown = whole[: data.draw(st.integers(0, len(whole)))]
    end = end_of_shown(texts, shown)
    assert end is not None
    at, count = end
    assert f"{''.join(texts[:at])}{texts[at][:count]}".endswith(shown)
