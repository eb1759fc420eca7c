"""Conversations in OpenAI's chat format, for hypothesis."""

from typing import Any

from hypothesis import strategies as st

_TEXT = st.text(alphabet=st.characters(blacklist_categories=["Cs"]), max_size=20)
_ARGUMENTS = st.sampled_from(["{}", '{"place": "x"}', '{"a": [1, null]}'])


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A system prompt or none, then whatever is said, each call followed by its result."""
    messages: list[dict[str, Any]] = []
    prompt = draw(_TEXT)
    if prompt:
        messages.append({"role": "system", "content": prompt})
    calls = 0
    for kind in draw(st.lists(st.sampled_from(["user", "text", "calls"]), max_size=8)):
        if kind == "user":
            messages.append({"role": "user", "content": draw(_TEXT)})
        elif kind == "text":
            messages.append({"role": "assistant", "content": draw(_TEXT.filter(bool))})
        else:
            ids = [f"c{calls + at}" for at in range(draw(st.integers(1, 3)))]
            calls += len(ids)
            asked = [
                {"id": one, "type": "function", "function": {"name": "look", "arguments": draw(_ARGUMENTS)}}
                for one in ids
            ]
            messages.append({"role": "assistant", "content": draw(_TEXT) or None, "tool_calls": asked})
            messages += [{"role": "tool", "tool_call_id": one, "content": draw(_TEXT)} for one in ids]
    return messages
