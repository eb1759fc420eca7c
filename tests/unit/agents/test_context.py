"""A tool's reconciler is checked where it is declared."""

from typing import Any

import pytest

from perdure import DidNotHappen, EffectUnknown, Happened, ToolContext, ToolDefinitionError, tool


async def found(amount: int, account: str, call: ToolContext) -> Happened | DidNotHappen | EffectUnknown:
    return Happened(f"{amount} to {account} by {call.idempotency_key}")


def test_a_reconciler_takes_the_arguments_of_its_tool_and_the_context() -> None:
    @tool(reconcile=found)
    def pay(context: ToolContext, amount: int, account: str = "mine") -> str:
        """Pay."""
        return account

    assert pay.reconciler is not None
    assert (pay.reconciler.function, pay.reconciler.context_parameter) == (found, "call")
    assert pay.with_(name="transfer").reconciler == pay.reconciler


@pytest.mark.parametrize(
    ("reconcile", "problem"),
    [
        (DidNotHappen, "got an unexpected keyword argument 'amount'"),
        (lambda amount, other: DidNotHappen(), "missing a required argument: 'other'"),
    ],
)
def test_a_reconciler_with_other_parameters_is_refused(reconcile: Any, problem: str) -> None:
    with pytest.raises(ToolDefinitionError) as refused:

        @tool(reconcile=reconcile)
        def pay(amount: int) -> str:
            """Pay."""
            return str(amount)

    assert str(refused.value) == (
        f"tool 'pay': its reconciler cannot be called with the tool's arguments ({problem}); "
        "give it the parameters of the tool"
    )
