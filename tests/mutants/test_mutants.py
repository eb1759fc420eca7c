"""The mutation run: which changes it makes, and that it puts them where they belong."""

from dataclasses import replace
from pathlib import Path

import pytest

from perdure.contracts.budgets import Paid, Usage
from tests.mutants.__main__ import place
from tests.mutants.callers import ROOT
from tests.mutants.mutations import make_mutant, sites_of

SOURCE = '''
LIMIT = 3


class Gate:
    """A gate."""

    def opens(self, size: int = 4) -> bool:
        """Whether it opens: never for more than 9."""
        if not size or size is None:
            raise ValueError(f"no size {1 + 1}")
        return size <= LIMIT and True


def shift(values: list[int]) -> list[int]:
    inner = lambda value: value + 1
    return [inner(value) for value in values if value not in (7,)]
'''

EXPECTED = [
    "Gate.opens: not size or size is None -> not size and size is None",
    "Gate.opens: not size -> not not size",
    "Gate.opens: size is None -> size is not None",
    "Gate.opens: return size <= LIMIT and True -> return None",
    "Gate.opens: size <= LIMIT and True -> size <= LIMIT or True",
    "Gate.opens: size <= LIMIT -> size < LIMIT",
    "Gate.opens: True -> False",
    "shift: 1 -> 2",
    "shift: return [inner(value) for value in values if value not in (7,)] -> return None",
    "shift: value not in (7,) -> value in (7,)",
    "shift: 7 -> 8",
]


def test_each_change_is_made_once_and_texts_defaults_and_annotations_stay(tmp_path: Path) -> None:
    path = tmp_path / "gates.py"
    path.write_text(SOURCE)
    mutants = [make_mutant(site) for site in sites_of(path)]
    assert [f"{mutant.name}: {mutant.change}" for mutant in mutants if mutant] == EXPECTED
    assert path.read_text() == SOURCE


def test_a_mutant_stands_in_the_place_of_its_function(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path("perdure/contracts/budgets.py")
    monkeypatch.chdir(ROOT)
    mutants = (make_mutant(site) for site in sites_of(path))
    mutant = next(found for found in mutants if found and found.name == "Paid.plus" and "return None" in found.change)
    original = replace(mutant, code=Paid.plus.__code__)
    try:
        placed = place(mutant)  # more than one beside tests whose workflow sandboxes have modules of their own
        assert Paid().plus(Usage(), None) is None
    finally:
        restored = place(original)
    assert placed == restored >= 1
    assert Paid().plus(Usage(), None) == Paid()
