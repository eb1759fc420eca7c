"""The page on upgrades names what there is: patches, the schema, ways to move a turn, waits, defaults of the replay."""

import re
from typing import get_args

import click

from perdure.activities.errors import (
    FIRST_MISSING_RETRY,
    GROWTH,
    LONGEST_MISSING_RETRY,
    RAREST_MISSING_RETRY,
    SOON,
)
from perdure.cli.main import cli
from perdure.client.versions import POLLER_AGE
from perdure.settings import Settings
from perdure.store.schema import OLDEST_REVISION, REVISION
from perdure.workflows.versions import PATCHES
from tests.docs.sections import DOCS

TEXT = (DOCS / "upgrades.md").read_text(encoding="utf-8")
PAGE = re.sub(r"\s+", " ", TEXT)


def test_every_patch_is_named() -> None:
    (told,) = re.findall(r"This release has \w+ patch(?:es)?, (.*?)\. ", PAGE)
    assert set(re.findall(r"`([\w-]+)`", told)) == set(PATCHES)


def test_the_schema_of_the_example_is_that_of_this_release() -> None:
    assert f"`schema {REVISION}, for releases that know {OLDEST_REVISION}`" in PAGE


def test_every_way_of_a_running_turn_has_its_row() -> None:
    table = TEXT.partition("| `PERDURE_VERSIONING` |")[2].partition("\n\n")[0]
    told = re.findall(r"^\| `(\w+)`", table, re.MULTILINE)
    field = Settings.model_fields["versioning"]
    assert sorted(told) == sorted(get_args(field.annotation))
    assert f"`{field.default}`, the default" in PAGE


def test_waits_are_those_of_the_code() -> None:
    assert (FIRST_MISSING_RETRY.total_seconds(), SOON.total_seconds()) == (0.5, 2)
    assert "after half a second, and again each half second, later two, while one that polls has it" in PAGE
    assert GROWTH * LONGEST_MISSING_RETRY.total_seconds() == 5 * 60
    assert f"grow: to {LONGEST_MISSING_RETRY.seconds} seconds within the first five minutes" in PAGE
    assert f"to {RAREST_MISSING_RETRY.seconds // 60} minutes in three days" in PAGE
    assert f"counts for {POLLER_AGE.seconds} seconds" in PAGE


def test_defaults_of_the_replay_are_those_of_the_verb() -> None:
    found = cli.get_command(click.Context(cli), "replay")
    assert found is not None
    defaults = {option.name: option.default for option in found.params}
    assert f"`--since` ({str(defaults['since']).removesuffix('h')} hours by default)" in PAGE
    assert f"reads at most N histories ({defaults['limit']:,} by default)" in PAGE
