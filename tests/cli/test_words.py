"""gpucost explain-term: every word of the glossary, and those that others use."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from gpucost.cli.application import app
from gpucost.reports.base.glossary import docs_folder, explained_by, glossary_entries, near_words
from gpucost.reports.waste.waste_table import LABELS

ENTRIES = glossary_entries((docs_folder() / "glossary.md").read_text("utf-8"))


def told(*words: str) -> str:
    found = CliRunner().invoke(app, ["explain-term", *words], env={"COLUMNS": "100"})
    assert found.exit_code == 0, found.stderr
    return found.stdout


@pytest.mark.parametrize(
    ("term", "said"),
    [
        ("cohort", "queues that lend each other"),
        ("Cohort", "queues that lend each other"),
        ("gang_stall", "members were missing"),
        ("MIG", "Multi-Instance GPU"),
        ("chargeback", "charge policy"),
        ("nominalQuota", "how much a queue may hold"),
        ("nominal", "it may borrow more"),
        ("Nominal quota", "it may borrow more"),
        ("p10", "one in ten comes before p10"),
        ("p90", "nine in ten before p90"),
        ("percentile", "one in ten comes before p10"),
        ("flavor", "such as one GPU model"),
        ("reserved", "whether it has started or not"),
        ("SM (activity)", "that were at work"),
        ("settled", "its numbers stay"),
        ("window", "an hour by default"),
        ("digest", "one changed figure shows"),
        ("starved", "free while a job waited that would have fitted"),
    ],
)
def test_a_word_is_explained(term: str, said: str) -> None:
    text = " ".join(told(term).split())
    assert said in text
    assert "](" not in text
    assert "*" not in text


def test_every_row_of_the_glossary_is_found_by_its_own_words() -> None:
    assert len(ENTRIES) > 100
    for entry in ENTRIES:
        assert all(entry in explained_by(ENTRIES, word) for word in entry.words), entry.title


def test_every_bucket_of_the_waste_table_has_a_row() -> None:
    assert [label for label in LABELS.values() if not explained_by(ENTRIES, label)] == []


@pytest.mark.parametrize("term", ["chorot", "", "\x1b[2J", "[red]"])
def test_an_unknown_word_is_refused_with_those_that_are_like_it(term: str) -> None:
    found = CliRunner().invoke(app, ["explain-term", term])
    assert found.exit_code == 2
    assert "TERM" in found.stderr
    assert "\x1b" not in found.stderr
    assert found.stdout == ""


def test_what_is_like_it_is_named() -> None:
    assert near_words(ENTRIES, "chorot") == ("cohort",)
