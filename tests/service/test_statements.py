"""Which team rules gave a team what it pays for: summed to what it held, known or not, in any currency."""

from __future__ import annotations

import io
from fractions import Fraction
from pathlib import Path

from rich.console import Console

from gpucost.attribution.attribute import attribute
from gpucost.attribution.teams import NO_RULE, TeamRules
from gpucost.attribution.usage_lines import Attribution
from gpucost.charges.policy_file import PolicyBook
from gpucost.domain.buckets import NO_TEAM
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import HOUR_MS
from gpucost.ledger.ledger import Ledger
from gpucost.reports.charges.charge_statements import StatementRule, TeamStatement
from gpucost.reports.charges.terminal_charges import print_statement
from gpucost.service.reporting.charge_reports import close_month, team_statements
from gpucost.service.reporting.rendering import ReportFormat, render_statements
from gpucost.service.wiring.ledger import build_reporting
from tests.ledger.builders import MONTH, NOW_MS, hour, ingest, ingest_batch, ingest_flat, line
from tests.support.frames import FlatRates, build, node, pod, units
from tests.support.ledgers import new_ledger

RULES = "version: 1\nrules: [{team: nlp, namespace: [nlp, '<b>&*']}, {team_from: team_label}]"
PLAIN = "version: 1\nname: by use\n"
EUROS = PLAIN + "currency: EUR\nrates: [{from: USD, rate: 0.5}]\n"


def usage(first: int, last: int) -> Attribution:
    """In each hour: nlp holds 2 GPUs by namespace, 1 by label on a node without a price, and 3 by label."""
    frames = build(
        pods=[
            pod("a", (0, 9), 2, namespace="nlp"),
            pod("b", (0, 9), 1, namespace="lab", team_label="nlp", node="n2"),
            pod("c", (0, 9), 3, namespace="lab", team_label="nlp"),
            pod("d", (0, 9), 1, namespace="lab", team_label="__unallocated__"),
        ],
        nodes=[node(), node("n2")],
        capacity=[units(), units(name="n2")],
    )
    prices = FlatRates(("2.00", 0))
    return attribute(
        frames,
        [hour(number) for number in range(first, last)],
        rates=lambda facts, window: () if facts.node == "n2" else prices(facts, window),
        teams=TeamRules.parse(RULES, "teams.yaml"),
    )


def statements(tmp_path: Path, policy: str, scope: Scope = EVERYTHING) -> tuple[TeamStatement, ...]:
    """Two hours whose rules were recorded, and one whose were not, as of a release before."""
    with Ledger.open(new_ledger(tmp_path / "ledger.db"), now=lambda: NOW_MS) as ledger:
        ingest_batch(ledger, usage(0, 2))
        ingest_flat(ledger, usage(2, 3))
        reporting = build_reporting(ledger, TeamRules.default())
        book = PolicyBook.parse(policy, "policy.yaml")
        return team_statements(reporting, scope, MONTH, book, {}, ["nlp", NO_TEAM]).statements


def test_a_rule_of_whose_time_nothing_has_a_price_has_no_amount(tmp_path: Path) -> None:
    with Ledger.open(new_ledger(tmp_path / "ledger.db"), now=lambda: NOW_MS) as ledger:
        window = hour(0)
        bare = {"nano": None, "unpriced_ms": HOUR_MS, "rate_id": "", "board_ms": HOUR_MS}
        ingest(ledger, window, line(window, team="nlp", **bare))
        reporting = build_reporting(ledger, TeamRules.default())
        book = PolicyBook.parse(PLAIN, "policy.yaml")
        [nlp] = team_statements(reporting, EVERYTHING, MONTH, book, {}, ["nlp"]).statements
    assert nlp.rules == (StatementRule(None, HOUR_MS, None, HOUR_MS),)
    for kind in (ReportFormat.JSON, ReportFormat.HTML, ReportFormat.CSV, ReportFormat.PARQUET):
        assert render_statements([nlp], kind, one=True)
    target = io.StringIO()
    print_statement(nlp, Console(file=target, width=100))
    [row] = [each for each in target.getvalue().splitlines() if "not recorded" in each]
    assert row.split()[-1] == "–"


def test_rules_sum_to_what_the_team_held(tmp_path: Path) -> None:
    """By hand, at 2 dollars: by label 4 x 2 = 8 GPU-hours, of which 2 have no price; by namespace 2 x 2; in
    the third hour 6, of which 1 has no price."""
    nlp, nobody = statements(tmp_path, PLAIN)
    money = 2 * 10**9
    assert nlp.rules == (
        StatementRule("team_label names the team", 8 * HOUR_MS, 6 * money, 2 * HOUR_MS),
        StatementRule(None, 6 * HOUR_MS, 5 * money, HOUR_MS),
        StatementRule("namespace is <b>&* or nlp", 4 * HOUR_MS, 4 * money, 0),
    )
    assert sum(rule.board_ms for rule in nlp.rules) == sum(line.board_ms for line in nlp.lines)
    assert sum(rule.nano or 0 for rule in nlp.rules) == nlp.charged_nano
    assert nlp.charged_nano == sum(each.nano for each in nlp.prices)
    assert sum(rule.unpriced_board_ms for rule in nlp.rules) == nlp.unpriced_board_ms
    assert [(rule.rule, rule.board_ms) for rule in nobody.rules] == [
        (NO_RULE, 2 * HOUR_MS),
        (None, HOUR_MS),
    ]


def test_rules_are_in_the_currency_of_the_ledger(tmp_path: Path) -> None:
    nlp, _ = statements(tmp_path, EUROS)
    assert (nlp.currency, nlp.ledger_currency) == ("EUR", "USD")
    assert sum(rule.nano for rule in nlp.rules) == 2 * nlp.charged_nano


def test_adjustments_are_converted_at_the_rate_of_the_end_of_the_month(tmp_path: Path) -> None:
    """By hand, at 2 dollars: 6 GPU-hours of each of two hours cost 20 (2 have no price), at 0.5 that is 10
    euros. 3 dollars back are 1.20 at the rate of the month's last days, and 1 more for nobody is 0.40."""
    text = f"{PLAIN}currency: EUR\nrates:\n"
    text += '- {from: USD, rate: 0.5, valid_to: "2026-10-20"}\n'
    text += '- {from: USD, rate: 0.4, valid_from: "2026-10-20"}\n'
    book = PolicyBook.parse(text, "policy.yaml")
    with Ledger.open(new_ledger(tmp_path / "ledger.db"), now=lambda: NOW_MS) as ledger:
        ingest_batch(ledger, usage(0, 2))
        reporting = build_reporting(ledger, TeamRules.default(), book)
        close_month(reporting, MONTH, book, author="ada", min_coverage=Fraction(0), reason="a test")
        ledger.adjust(MONTH, "nlp", -3 * 10**9, 0, "a test", "ada", "FIN-1")
        ledger.adjust(MONTH, NO_TEAM, 10**9, 0, "a test", "ada", "FIN-1")
        made = team_statements(reporting, EVERYTHING, MONTH, book, {}, ["nlp", NO_TEAM])
        answer = reporting.month(EVERYTHING, MONTH)
    nlp, nobody = made.statements
    assert (nlp.currency, nlp.charged_nano, nlp.adjusted_nano) == ("EUR", 10 * 10**9, -1_200_000_000)
    assert [each.nano for each in nlp.adjustments] == [-1_200_000_000]
    assert nlp.total_nano == 8_800_000_000
    assert [each.nano for each in nobody.adjustments] == [400_000_000]
    totals = {each.team: each.total_nano for each in made.summary.teams}
    assert totals == {"nlp": nlp.total_nano, NO_TEAM: nobody.total_nano}
    assert answer is not None
    assert answer.report.charges is not None
    assert {each.team: each.total_nano for each in answer.report.charges.teams} == totals


def test_what_was_not_recorded_is_said_and_patterns_are_only_text(tmp_path: Path) -> None:
    found = statements(tmp_path, PLAIN)
    console = Console(file=io.StringIO(), width=120)
    print_statement(found[0], console)
    assert isinstance(console.file, io.StringIO)
    rows = [" ".join(row.split()) for row in console.file.getvalue().splitlines()]
    assert "not recorded 6.0 10.00" in rows
    assert "namespace is <b>&* or nlp 4.0 8.00" in rows
    page = str(render_statements(found, ReportFormat.HTML))
    assert '<th scope="row">not recorded</th><td>6.0</td>' in page
    assert "&lt;b&gt;&amp;* or nlp" in page
    assert "<b>" not in page
