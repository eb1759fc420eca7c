"""What a turn has to remember for the sake of its agent's hooks; empty in a turn without any."""

from perdure.contracts.hooks import Boundary, Decided
from perdure.contracts.values import Value


class WasRead(Value):
    """What the last generation was given: with it, its step can be taken back."""

    parent: str
    call_ids: tuple[str, ...] = ()
    said: tuple[str, ...] = ()


class HookState(Value):
    """Where a turn stands with its hooks.

    Attributes:
        boundary: Where they are called next; None until the next generation.
        calling: The hooks written in Python that are to be called there.
        said: What the next generation is told by hooks.
        read: What the last one was given; None before the first.
        calls: The calls of the last answer, by id and tool.
        happened: The events of the last generation that a rule can be on.
        unheard: Decisions that hooks are on, and will hear of when the results of a step are there.
        ended: The same of delegates in the background: the calls of those that have ended.
        told: How many of those two hooks hear of at this boundary; what comes while they run is for the next step.
        retries_in_row: Retries that hooks have asked for since the last step without one.
        carried_out: In how many steps each hook has had its way.
    """

    boundary: Boundary | None = None
    calling: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    read: WasRead | None = None
    calls: tuple[tuple[str, str], ...] = ()
    happened: tuple[str, ...] = ()
    unheard: tuple[Decided, ...] = ()
    ended: tuple[str, ...] = ()
    told: tuple[int, int] = (0, 0)
    retries_in_row: int = 0
    carried_out: dict[str, int] = {}
