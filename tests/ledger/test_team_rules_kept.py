"""Which team rule gave a line's holder its team: recorded with the line, and in no digest."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import pytest
from alembic import command
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from gpucost.attribution.attribute import attribute
from gpucost.attribution.teams import NO_RULE, TeamRules
from gpucost.attribution.usage_lines import Attribution
from gpucost.domain.buckets import NO_TEAM
from gpucost.domain.errors import InputError
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import HOUR_MS, Window
from gpucost.ledger.db.database import alembic_config
from gpucost.ledger.ledger import Ledger
from tests.ledger.builders import BATCH_CLUSTER, MONTH, NOW_MS, hour, ingest_batch, ingest_flat
from tests.ledger.tampering import tamper
from tests.support.frames import FlatRates, build, node, pod, units

SPAN = Window(hour(0).start_ms, hour(3).end_ms)
VISION, LABEL = "namespace is vision or vision-*", "team_label names the team"
RULES = """
version: 1
rules:
  - {team: vision, namespace: ["vision-*", vision]}
  - {team_from: team_label}
"""
NO_TEXT = ", ''"
HELD = {"bucket": ["held"]}


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with Ledger.open(ledger_url, now=lambda: NOW_MS) as opened:
        yield opened


def usage(rules: str) -> Attribution:
    """Of 8 GPUs at 2 dollars over four hours: a pod of the namespace vision holds 1, pods with the label
    vision and nlp hold 2 and 3 for two hours, and one that no rule is about holds 1 for one hour."""
    frames = build(
        pods=[
            pod("a", (0, 4), namespace="vision"),
            pod("b", (0, 2), 2, namespace="lab", team_label="vision"),
            pod("c", (0, 2), 3, namespace="lab", team_label="nlp"),
            pod("d", (1, 2), namespace="lab"),
        ],
        nodes=[node()],
        capacity=[units()],
    )
    windows = [hour(number) for number in range(4)]
    return attribute(
        frames, windows, rates=FlatRates(("2.00", 0)), teams=TeamRules.parse(rules, "teams.yaml")
    )


def held(ledger: Ledger, scope: Scope = EVERYTHING, **options: object) -> dict[tuple[str, str], list[int]]:
    """GPU-hours and dollars by team and rule."""
    found = ledger.aggregate(scope, SPAN, ("team", "team_rule"), **{"filters": HELD} | options)  # type: ignore[arg-type]
    return {
        (row.team, row.team_rule): [row.board_ms // HOUR_MS, row.nano // 10**9] for row in found.itertuples()
    }


def test_held_time_and_cost_by_deciding_rule(ledger: Ledger) -> None:
    """By hand: a 1 x 4, b 2 x 2, c 3 x 2, d 1 GPU-hours of 2 dollars."""
    ingest_batch(ledger, usage(RULES))
    assert held(ledger) == {
        (NO_TEAM, NO_RULE): [1, 2],
        ("nlp", LABEL): [6, 12],
        ("vision", VISION): [4, 8],
        ("vision", LABEL): [4, 8],
    }
    assert ledger.verify() == ()
    whole = ledger.aggregate(EVERYTHING, SPAN, ("bucket", "team_rule"))
    free = whole[whole["bucket"] == "unallocated"]
    assert free[["team_rule", "board_ms"]].to_numpy().tolist() == [["", 17 * HOUR_MS]], (
        "8 x 4 - 15, by no rule"
    )


def test_a_team_sees_its_own_rules_only(ledger: Ledger) -> None:
    ingest_batch(ledger, usage(RULES))
    nlp = Scope(frozenset({"nlp"}))
    assert held(ledger, nlp) == {("nlp", LABEL): [6, 12]}
    assert held(ledger, nlp, filters={"team_rule": [VISION, NO_RULE, ""]}) == {}
    by_label = {"filters": HELD | {"team_rule": [LABEL]}}
    assert held(ledger, **by_label) == {("nlp", LABEL): [6, 12], ("vision", LABEL): [4, 8]}


def test_it_is_in_no_digest_and_rules_that_give_the_same_teams_write_nothing(ledger: Ledger) -> None:
    """Frames of lines do not say rules. The rule is that of the time when the window was written."""
    flat = ingest_flat(ledger, usage(RULES))
    assert set(held(ledger)) == {(team, "") for team in (NO_TEAM, "nlp", "vision")}
    assert set(held(ledger, filters={"team_rule": [""], **HELD})) == set(held(ledger)), "not recorded"
    again = ingest_batch(ledger, usage(RULES))
    assert [(one.digest, one.changed) for one in again] == [(one.digest, False) for one in flat]
    moved = ingest_batch(
        ledger, usage("version: 1\nrules: [{team: vision, namespace: vision}]"), reason="rules"
    )
    assert [one.changed for one in moved] == [True, True, False, False]
    assert set(held(ledger)) == {
        (NO_TEAM, NO_RULE),
        ("vision", ""),  # hours 2 and 3, which are as they were
        ("vision", "namespace is vision"),
    }


TWICE = """
version: 1
rules:
  - {team: vision, namespace: vision, valid_to: "2026-10-01T01:15:00Z"}
  - {team: vision, namespace: vision, valid_from: "2026-10-01T01:15:00Z"}
  - {team: nlp, namespace: lab}
"""
BEFORE, AFTER = (f"namespace is vision, {side} 2026-10-01T01:15:00Z" for side in ("to", "from"))


def test_a_line_of_two_rules_has_the_last(ledger: Ledger) -> None:
    """The second hour is one line: the team is the same."""
    found = usage(TWICE)
    ingest_batch(ledger, found)
    steps = ledger.aggregate(
        EVERYTHING, SPAN, ("team_rule",), filters={"team": ["vision"]}, step_ms=HOUR_MS
    ).sort_values("step_start_ms")
    assert steps["team_rule"].tolist() == [BEFORE, AFTER, AFTER, AFTER]
    assert steps["board_ms"].tolist() == [HOUR_MS] * 4


def test_adding_up_by_day_keeps_the_rule_where_all_lines_agree(ledger: Ledger) -> None:
    ingest_batch(ledger, usage(TWICE))
    ledger.close_month(MONTH, author="ann", min_coverage=Fraction(0), reason="four hours are enough")
    ledger.fold(MONTH, author="ann")
    days = ledger.aggregate(EVERYTHING, MONTH.window, ("team", "team_rule"), filters=HELD)
    assert days[["team", "team_rule", "board_ms"]].to_numpy().tolist() == [
        ["nlp", "namespace is lab", 11 * HOUR_MS],
        ["vision", "", 4 * HOUR_MS],
    ]
    assert ledger.verify() == ()


def test_waste_lines_say_no_rules(ledger: Ledger) -> None:
    with pytest.raises(InputError, match="'team_rule' is not allowed"):
        ledger.waste(EVERYTHING, SPAN, ("team_rule",))


def test_the_texts_only_grow_and_a_forged_one_is_found(ledger_url: str, ledger: Ledger) -> None:
    ingest_batch(ledger, usage(RULES))
    engine = create_engine(ledger_url)
    for statement in ("UPDATE team_rule SET team_rule = 'x'", "DELETE FROM team_rule"):
        with pytest.raises(DBAPIError, match="team_rule is append-only"), engine.begin() as connection:
            connection.execute(text(statement))
    engine.dispose()
    tamper(ledger_url, f"UPDATE team_rule SET team_rule = 'mine' WHERE team_rule = '{LABEL}'")
    [finding] = ledger.verify()
    assert finding.subject.startswith("team_rule ")


def test_lines_written_before_are_not_recorded_and_go_on(empty_url: str) -> None:
    """A ledger of the revision before, with a window in it."""
    engine = create_engine(empty_url)
    with engine.begin() as connection:
        command.upgrade(alembic_config(connection), "0010")
        for statement in (
            f"INSERT INTO unit VALUES (1, 'u', 'c', 'n', 'r', 'H100', '', 1, 1, 'compute'{NO_TEXT * 5})",
            f"INSERT INTO holder VALUES (1, 'h', 'ns', 'p', 'uid'{NO_TEXT * 10}, 'old')",
            f"INSERT INTO ledger_window VALUES (1, '{BATCH_CLUSTER}', {hour(4).start_ms}, {hour(4).end_ms},"
            " '2026-10', 'open', 1)",
            "INSERT INTO usage_line"
            " (window_id, unit_id, holder_id, rate_id, bucket, board_ms, first_ms, last_ms)"
            f" VALUES (1, 1, 1, 0, 'held', 7, {hour(4).start_ms}, {hour(4).end_ms})",
        ):
            connection.execute(text(statement))
    engine.dispose()
    with Ledger.open(empty_url, now=lambda: NOW_MS) as ledger:
        [row] = ledger.aggregate(EVERYTHING, hour(4), ("team", "team_rule")).itertuples()
        assert (row.team, row.team_rule, row.board_ms, row.unpriced_ms) == ("old", "", 7, 7)
