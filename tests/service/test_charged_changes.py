"""Why teams are charged another amount than the month before: by hand, and at random to the nano-unit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner

from gpucost.attribution.teams import TeamRules
from gpucost.charges.cell_charges import PLATFORM
from gpucost.charges.policy_file import PolicyBook
from gpucost.cli.application import app
from gpucost.domain.errors import InputError
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window
from gpucost.ledger.ledger import Ledger
from gpucost.reports.base.values import CostAmount
from gpucost.reports.month.change_causes import ChangeCause, cause_words
from gpucost.reports.month.span_change import SpanChange
from gpucost.service.reporting.charge_reports import kept_statements, month_account
from gpucost.service.reporting.charged_changes import compare_charges
from gpucost.service.reporting.report_service import ReportService
from gpucost.service.wiring.ledger import build_reporting
from tests.ledger.builders import hour, ingest, line
from tests.support.focus_world import BEFORE, MONTH, NOW_MS, RATES, free, held
from tests.support.ledgers import new_ledger

POLICY = """
version: 1
name: owners
policies: [{valid_from: "2026-01-01", base: use, idle_of_quota: owner}]
quotas:
  - {team: red, model: H100, gpus: %s, cohort: lab, valid_to: "2026-10-01"}
  - {team: red, model: H100, gpus: %s, cohort: lab, valid_from: "2026-10-01"}
  - {team: blue, model: H100, gpus: 0, cohort: lab}
"""
HOURS = 2
GAPS = {"missing_data", "span"}
Held = Mapping[str, int]
"""GPUs of each team, of 16."""


def lines(window: Window, teams: Held) -> list[dict[str, Any]]:
    rows = [held(window, "n", Fraction(gpus), team, "j") for team, gpus in teams.items() if gpus]
    return [*rows, free(window, "n", Fraction(16 - sum(teams.values())))]


def fill(ledger: Ledger, before: list[Held], now: list[Held]) -> None:
    first = BEFORE.window.length_ms // HOUR_MS - len(before)
    for number, teams in enumerate(before):
        window = hour(first + number, BEFORE)
        ingest(ledger, window, *lines(window, teams), rates=RATES)
    for number, teams in enumerate(now):
        ingest(ledger, hour(number), *lines(hour(number), teams), rates=RATES)


def changed(ledger: Ledger, policy: str, scope: Scope = EVERYTHING) -> SpanChange:
    book = PolicyBook.parse(policy, "policy.yaml")
    found = compare_charges(
        build_reporting(ledger, TeamRules.default()), scope, MONTH.window, BEFORE.window, book
    )
    assert found is not None
    return found.report


def nano(amount: CostAmount) -> int:
    assert amount.nano is not None
    return amount.nano


def told(found: SpanChange, team: str) -> dict[str, int]:
    (row,) = (each for each in found.rows if each.group == team)
    assert sum(each.nano for each in row.causes) == row.change_nano == nano(row.now) - nano(row.before)
    causes = {str(each.kind): each.nano for each in row.causes}
    if causes.keys() >= GAPS:  # most of both months is not there, of one as much as of the other
        assert sum(causes.pop(each) for each in GAPS) == 0 or row.before.board_ms != row.now.board_ms
    return causes


def quota_cause(found: SpanChange, kind: str) -> ChangeCause:
    return next(each for each in found.causes if each.team == "red" and each.kind == kind)


def of(tmp_path: Path, policy: str, before: Held, now: Held) -> SpanChange:
    with Ledger.open(new_ledger(tmp_path / "l.db"), now=lambda: NOW_MS) as ledger:
        fill(ledger, [before] * HOURS, [now] * HOURS)
        return changed(ledger, policy)


GPU = 3 * 10**9 * HOURS
"""What a GPU costs in the hours that there are."""


def test_less_lending_is_a_cause(tmp_path: Path) -> None:
    """Red has 8 GPUs and uses 4; blue borrows the others, then holds nothing: red pays for them itself."""
    found = of(tmp_path, POLICY % (8, 8), {"red": 4, "blue": 4}, {"red": 4})
    assert told(found, "red") == {"lending": 4 * GPU}
    assert told(found, "blue") == {"gone_team": -4 * GPU}
    assert cause_words(quota_cause(found, "lending")) == "less quota lent, 8.0 GPU-hours"
    assert found.change_nano == 0
    assert "Charged by owners" in found.notes[-1]


def test_more_quota_is_a_cause(tmp_path: Path) -> None:
    found = of(tmp_path, POLICY % (8, 12), {"red": 4}, {"red": 4})
    assert told(found, "red") == {"quota": 4 * GPU}
    assert cause_words(quota_cause(found, "quota")) == "more quota, in GPUs: 8.0 before, 12.0 now"


def test_more_use_of_a_quota_costs_its_owner_nothing(tmp_path: Path) -> None:
    found = of(tmp_path, POLICY % (8, 8), {"red": 2}, {"red": 6})
    causes = told(found, "red")
    assert causes.pop("quota_use") == -4 * GPU
    assert sum(causes.values()) == 4 * GPU


MORE = POLICY.replace(
    "idle_of_quota: owner",
    "idle_of_quota: owner, borrowed_factor: 1.25, mark_up: 0.03, idle_of_nobody: by_use, unavailable: by_use",
)


@pytest.mark.parametrize("seed", range(4))
def test_causes_add_up_to_what_is_charged(tmp_path: Path, seed: int) -> None:
    choose = Random(seed)
    with Ledger.open(new_ledger(tmp_path / "l.db"), now=lambda: NOW_MS) as ledger:

        def drawn() -> list[Held]:
            many = choose.randint(1, 4)
            return [{"red": choose.randint(0, 8), "blue": choose.randint(0, 8)} for _ in range(many)]

        fill(ledger, drawn(), drawn())
        ledger.close_month(BEFORE, author="ada", min_coverage=Fraction(0), reason="a test")
        ledger.adjust(BEFORE, "red", -choose.randint(1, 10**10), 0, "a test", "ada", "FIN-1")
        policy = choose.choice((POLICY, MORE)) % (choose.randint(0, 12), choose.randint(0, 12))
        found = changed(ledger, policy)
        book, reporting = (
            PolicyBook.parse(policy, "policy.yaml"),
            build_reporting(ledger, TeamRules.default()),
        )
        for row in found.rows:
            told(found, row.group)
            for month, amount in ((MONTH, row.now), (BEFORE, row.before)):
                kinds = month_account(reporting, EVERYTHING, month, book, None).by_team().get(row.group, {})
                more = sum(
                    each.nano for each in ledger.adjustments(EVERYTHING, month) if each.team == row.group
                )
                assert amount.nano == sum(each.nano for each in kinds.values()) + more
        assert found.change_nano == nano(found.total) - nano(found.total_before)
        assert PLATFORM not in {row.group for row in found.rows}
        alone = changed(ledger, policy, Scope(frozenset({"red"})))
        assert [*alone.rows] == [row for row in found.rows if row.group == "red"]


def test_what_is_not_charged_by_month_and_team_is_refused(tmp_path: Path) -> None:
    with Ledger.open(new_ledger(tmp_path / "l.db"), now=lambda: NOW_MS) as ledger:
        fill(ledger, [{"red": 1}], [{"red": 2}])
        reporting = build_reporting(ledger, TeamRules.default())
        book = PolicyBook.parse(POLICY % (1, 1), "policy.yaml")
        spans = MONTH.window, BEFORE.window
        week = Window(MONTH.window.start_ms, MONTH.window.start_ms + 7 * DAY_MS)
        with pytest.raises(InputError, match="a month, as what is charged"):
            compare_charges(reporting, EVERYTHING, week, BEFORE.window, book)
        with pytest.raises(InputError, match="charges are of teams"):
            compare_charges(reporting, EVERYTHING, *spans, book, "model")
        with pytest.raises(InputError, match="all clusters"):
            compare_charges(reporting, Scope(None, frozenset({"c"})), *spans, book)
        with pytest.raises(InputError, match="without one teams are charged what they held"):
            compare_charges(reporting, EVERYTHING, *spans, PolicyBook.parse("version: 1\nname: p\n", "p"))
        euros = POLICY % (1, 1) + "currency: EUR\nrates: [{from: USD, rate: 0.5}]\n"
        with pytest.raises(InputError, match="are in EUR"):
            compare_charges(reporting, EVERYTHING, *spans, PolicyBook.parse(euros, "p"))
        assert compare_charges(reporting, EVERYTHING, Month(2027, 2).window, MONTH.window, book) is None


def test_the_command_says_who_pays_what_and_why(tmp_path: Path) -> None:
    """As people and programs read it; without a policy the option is refused."""
    with Ledger.open(new_ledger(tmp_path / "l.db"), now=lambda: NOW_MS) as ledger:
        fill(ledger, [{"red": 4, "blue": 4}], [{"red": 4}])
    (tmp_path / "policy.yaml").write_text(POLICY % (8, 8), encoding="utf-8")
    settings = tmp_path / "settings.yaml"
    place = f"ledger: {{url: 'sqlite:///{tmp_path / 'l.db'}'}}\n"
    settings.write_text(f"{place}charges: {{policy: '{tmp_path / 'policy.yaml'}'}}\n", encoding="utf-8")
    asked = ["--config", str(settings), "compare", "2026-10", "2026-09", "--charged"]
    result = CliRunner().invoke(app, asked)
    assert (result.exit_code, result.stderr) == (0, "")
    rows = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "+12.00 less quota lent, 4.0 GPU-hours" in rows
    assert "Charged by owners; the month before by owners" in rows
    assert "The causes add up to 0.000000000 USD." in rows
    found = json.loads(CliRunner().invoke(app, [*asked, "-f", "json"]).stdout)
    assert found["change_nano"] == 0
    for words, said in ((["--by", "model"], "--by: 'model'"), (["--cluster", "c"], "--cluster")):
        refused = CliRunner().invoke(app, [*asked, *words])
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert said in refused.stderr
    settings.write_text(place, encoding="utf-8")
    refused = CliRunner().invoke(app, asked)
    assert refused.exit_code == 2
    assert "a charge policy (charges.policy)" in refused.stderr


def test_under_contracts_a_correction_of_an_earlier_month_reaches_what_is_kept(tmp_path: Path) -> None:
    """A pool of 20 GPU-hours since August: what August drew was not left for November."""
    contracts = """
version: 1
currency: USD
contracts:
- {id: pool, kind: committed_use, per: term, start: "2026-08-01T00:00:00Z", end: "2027-01-01T00:00:00Z",
   gpu_hours: 20, upfront: 40.00, unused: by_use, overage_price: 9}
"""
    policy = "version: 1\nname: with contracts\ncontracts_file: contracts.yaml\n"
    book = PolicyBook.parse(policy, "policy.yaml", {}, lambda name: (contracts, name))
    august, november = Month(2026, 8), Month(2026, 11)
    now_ms = Month(2026, 12).window.end_ms

    def write(month: Month, gpus: int) -> None:
        window = hour(5, month)
        ingest(ledger, window, line(window, team="red", board_ms=gpus * HOUR_MS, nano=gpus), reason="late")

    def charged(reporting: ReportService) -> tuple[int, int]:
        answer = kept_statements(reporting, november, book)
        report = reporting.month(EVERYTHING, november)
        assert answer is not None
        assert report is not None
        assert report.report.charges is not None
        [statement] = [each for each in answer.report.statements if each.team == "red"]
        [payer] = [each for each in report.report.charges.teams if each.team == "red"]
        return statement.charged_nano, payer.charged_nano

    with Ledger.open(f"sqlite:///{tmp_path / 'l.db'}", now=lambda: now_ms) as ledger:
        for month in (august, november):
            write(month, 4)
        kept = build_reporting(ledger, TeamRules.default(), book)
        first = charged(kept)
        assert charged(kept) == first
        write(august, 18)
        found = charged(kept)
        assert found == charged(build_reporting(ledger, TeamRules.default(), book))
        assert found[0] == found[1] > first[0] == first[1]
