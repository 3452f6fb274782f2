"""A month that was closed under contracts is charged, shown and exported as it was closed, whatever hours the
ledger gets before and after it; and a close says which earlier months still decide what it makes final."""

from __future__ import annotations

import io
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpucost.attribution.teams import TeamRules
from gpucost.charges.charge_account import charges, commitment_lines
from gpucost.charges.policy_file import PolicyBook
from gpucost.cli.application import app
from gpucost.domain.errors import ChargesChanged
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import HOUR_MS, Month
from gpucost.ledger.db.records import CloseRefused, MonthCharges
from gpucost.ledger.ledger import Ledger
from gpucost.reports.base.document import to_json
from gpucost.reports.focus.focus_columns import FocusDataset
from gpucost.service.reporting.charge_reports import close_month, month_account, team_statements
from gpucost.service.reporting.closed_charges import files_kept
from gpucost.service.reporting.commitment_reporting import CommitmentReporting
from gpucost.service.reporting.focus_exports import FocusExports, FocusRequest
from gpucost.service.reporting.month_closing import month_status, month_statuses, preview_close
from gpucost.service.reporting.report_service import ReportService
from gpucost.service.wiring.ledger import build_reporting
from tests.ledger.builders import hour, ingest, line
from tests.ledger.tampering import tamper
from tests.support.ledgers import new_ledger

SEPTEMBER, OCTOBER, NOVEMBER = Month(2026, 9), Month(2026, 10), Month(2026, 11)
GPU = 3 * 10**9
POOL = """
id: pool, kind: neocloud, start: "2026-09-01T00:00:00Z", end: "2027-01-01T00:00:00Z",
  gpu_hours: 6, per: term, upfront: 12, overage_price: 5, unused: by_use
"""
RESERVED = """
id: ri, kind: reservation, start: "2026-09-01T00:00:00Z", end: "2027-09-01T00:00:00Z",
  gpus: 3, recurring: [{amount: 2232, every: month}], owner: red
"""
NO_COVERAGE = Fraction(0)


OVERHEAD_UNTIL_THEN = """policies:
- {valid_to: "2026-10-01T00:00:00Z", overhead_teams: [red], overhead: platform}
- {valid_from: "2026-10-01T00:00:00Z"}
"""


def policy(contract: str, policies: str = "") -> PolicyBook:
    contracts = f"version: 1\ncurrency: USD\ncontracts:\n- {{{contract.strip()}}}\n"
    text = f"version: 1\nname: with contracts\ncontracts_file: contracts.yaml\n{policies}"
    return PolicyBook.parse(text, "policy.yaml", {}, lambda name: (contracts, name))


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    now_ms = Month(2026, 12).window.start_ms
    with Ledger.open(new_ledger(tmp_path / "l.db"), now=lambda: now_ms) as found:
        yield found


def write(ledger: Ledger, month: Month, *numbers: int) -> None:
    """In each of the hours red and blue hold a GPU each."""
    for number in numbers:
        window = hour(number, month)
        blue = {"namespace": "b", "job": "b", "job_uid": "b", "pod": "b", "pod_uid": "b"}
        ingest(ledger, window, line(window, nano=GPU), line(window, team="blue", nano=GPU, **blue))


def close(ledger: Ledger, book: PolicyBook, month: Month = OCTOBER) -> ReportService:
    reporting = build_reporting(ledger, TeamRules.default(), book)
    close_month(reporting, month, book, author="ada", min_coverage=NO_COVERAGE, reason="half a month")
    return reporting


def told(ledger: Ledger, book: PolicyBook) -> tuple[object, ...]:
    """All that is said of October: statements, the report's charges, commitments, and FOCUS."""
    reporting = build_reporting(ledger, TeamRules.default(), book)
    made = team_statements(reporting, EVERYTHING, OCTOBER, book, {}, ["red", "blue"])
    answer = reporting.month(EVERYTHING, OCTOBER)
    assert answer is not None
    assert answer.report.charges is not None
    assert book.contracts is not None
    commitments = CommitmentReporting(ledger, EVERYTHING).report(book.contracts, OCTOBER.window)
    file = io.BytesIO()
    exports = FocusExports(ledger, EVERYTHING, "1", book.contracts)
    exports.write(FocusRequest(OCTOBER), FocusDataset.COST_AND_USAGE, "csv", file)
    assert commitments is not None
    statements = [to_json(each) for each in made.statements]
    return *statements, to_json(answer.report.charges), to_json(commitments), file.getvalue()


def test_hours_after_a_closed_month_change_nothing_of_it(ledger: Ledger) -> None:
    """The ledger ended four hours before October did; then November begins."""
    write(ledger, OCTOBER, *range(730, 740))
    close(ledger, policy(RESERVED))
    before = told(ledger, policy(RESERVED))
    write(ledger, NOVEMBER, 0, 1)
    assert told(ledger, policy(RESERVED)) == before


def test_hours_before_a_closed_month_change_nothing_of_it(ledger: Ledger) -> None:
    """A pool of six GPU-hours since September: October, of which the ledger had the tenth hour on, had all of
    it. Four of them that September drew, as comes to light later, are not what October was charged."""
    write(ledger, OCTOBER, 10, 11, 12, 13)
    close(ledger, policy(POOL))
    before = told(ledger, policy(POOL))
    write(ledger, SEPTEMBER, 700, 701)
    assert told(ledger, policy(POOL)) == before


def test_late_hours_of_an_earlier_month_change_nothing_of_a_closed_one(ledger: Ledger) -> None:
    """By hand: an hour of September draws 2 of 6 GPU-hours, for which 12 were paid. The 4 that are left pay
    for the first two hours of October, 2 a GPU-hour, and the third is at 5: of each team 2 + 2 + 5."""
    write(ledger, SEPTEMBER, 700)
    write(ledger, OCTOBER, 0, 1, 2)
    close(ledger, policy(POOL))
    before = told(ledger, policy(POOL))
    write(ledger, SEPTEMBER, 701)
    assert told(ledger, policy(POOL)) == before
    reporting = build_reporting(ledger, TeamRules.default())
    red, blue = team_statements(reporting, EVERYTHING, OCTOBER, policy(POOL), {}, ["red", "blue"]).statements
    assert (red.total_nano, blue.total_nano) == (9 * 10**9, 9 * 10**9)
    other = policy(POOL.replace("gpu_hours: 6", "gpu_hours: 4")).contracts
    assert other is not None
    found = CommitmentReporting(ledger, EVERYTHING).report(other, OCTOBER.window)
    assert found is not None
    assert found.contracts[0].before_quantity.board_ms == 4 * HOUR_MS


def test_a_close_names_open_months_that_decide_what_is_left(ledger: Ledger) -> None:
    write(ledger, SEPTEMBER, 700)
    write(ledger, OCTOBER, 0)
    book = policy(POOL)
    reporting = build_reporting(ledger, TeamRules.default(), book)
    said = "contracts: 2026-09 is open, and decides what is left for 2026-10"
    assert said in preview_close(reporting, OCTOBER, NO_COVERAGE).status.blockers
    with pytest.raises(CloseRefused, match=said):
        close_month(reporting, OCTOBER, book, author="ada", min_coverage=NO_COVERAGE, reason=None)
    close(ledger, book, SEPTEMBER)
    assert said not in preview_close(reporting, OCTOBER, NO_COVERAGE).status.blockers
    own = build_reporting(ledger, TeamRules.default(), policy(RESERVED))
    assert said not in preview_close(own, OCTOBER, NO_COVERAGE).status.blockers


def test_the_status_of_a_month_says_what_a_close_would(ledger: Ledger) -> None:
    write(ledger, SEPTEMBER, 700)
    write(ledger, OCTOBER, 0)
    reporting = build_reporting(ledger, TeamRules.default(), policy(POOL))
    preview = preview_close(reporting, OCTOBER, NO_COVERAGE).status
    assert month_status(reporting, EVERYTHING, OCTOBER, NO_COVERAGE) == preview
    [own] = month_statuses(reporting, Scope(frozenset({"red"})), OCTOBER, NO_COVERAGE).months
    assert not [each for each in own.blockers if each.startswith("contracts")]


def test_a_month_that_kept_no_stand_is_charged_by_the_rule_of_its_time(ledger: Ledger) -> None:
    """Red, an overhead team until October, was left out of contracts in all months of the file."""
    write(ledger, OCTOBER, 0, 1, 2)
    book = policy(RESERVED, OVERHEAD_UNTIL_THEN)
    reporting = build_reporting(ledger, TeamRules.default(), book)
    assert book.contracts is not None
    drawn = CommitmentReporting(ledger, EVERYTHING).drawdown(book.contracts, OCTOBER.window)
    assert drawn is not None
    for without, changes in (((), True), (("red",), False)):
        lines = commitment_lines(OCTOBER, drawn.entries, book.contracts, book, without)
        assert any(each.key.team == "red" for each in lines) is changes
    cells = ledger.cells(EVERYTHING, OCTOBER.window)
    account = charges(cells, book, "USD", lines)
    kept = MonthCharges(book.name, book.text, files_kept(book, None), "{}", "USD", account.digest, ())
    assert month_account(reporting, EVERYTHING, OCTOBER, book, kept) == account


def test_a_report_is_made_where_a_closed_month_is_not_charged_as_it_was(
    ledger: Ledger, tmp_path: Path
) -> None:
    """A price was changed in the database. Only who sees every team is told of which teams."""
    write(ledger, OCTOBER, 0, 1)
    book = PolicyBook.parse("version: 1\nname: shared\npolicies: [{idle_of_nobody: by_use}]\n", "policy.yaml")
    close(ledger, book)
    tamper(f"sqlite:///{tmp_path / 'l.db'}", "UPDATE usage_line SET nano = nano + 7")
    reporting = build_reporting(ledger, TeamRules.default(), book)
    why = "the charges of 2026-10 are not those that it was closed with"
    whole, blue = (reporting.month(scope, OCTOBER) for scope in (EVERYTHING, Scope(frozenset({"blue"}))))
    assert whole is not None
    assert blue is not None
    assert (whole.report.charges, blue.report.charges) == (None, None)
    assert (blue.report.uncharged, whole.report.uncharged.startswith(f"{why} (digest ")) == (why, True)
    assert "blue, red); gpucost month verify 2026-10" in whole.report.uncharged
    with pytest.raises(ChargesChanged) as raised:
        team_statements(reporting, EVERYTHING, OCTOBER, book, {}, ["blue"])
    assert str(raised.value) == why
    settings = tmp_path / "settings.yaml"
    settings.write_text(f"ledger: {{url: 'sqlite:///{tmp_path / 'l.db'}'}}\n", encoding="utf-8")
    command = ["--config", str(settings), "statement", "2026-10", "--team", "blue"]
    refused = CliRunner().invoke(app, command)
    assert (refused.exit_code, refused.stdout) == (4, "")
    assert "blue, red); gpucost month verify 2026-10" in refused.stderr
