"""Agents for workers in processes of their own, whose tools give long outputs and ask the turn to end."""

from perdure import Agent, ToolContext, read_output, tool

LONG = "".join(f"line {number}\n" for number in range(20_000))


@tool
def write() -> str:
    """Write a long text."""
    return LONG


@tool
def hand_over(context: ToolContext) -> str:
    """Hand the work over."""
    context.stop_turn("a person goes on")
    return "handed over"


agent = Agent(name="tester", model="openai/scripted", tools=[write, hand_over, read_output])
