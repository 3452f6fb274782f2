"""Budgets out of a real ledger: when thresholds were reached, carry-over, what is told, and that once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pandas as pd
import pytest
from fastapi.testclient import TestClient

from benchmarks.report import PRICE, lines_of
from gpucost.api.app import create_app
from gpucost.api.server.services import PLAIN_BOOK
from gpucost.attribution.teams import TeamRules
from gpucost.domain.errors import ConfigError
from gpucost.domain.money import NANO
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.stores.predictions import WaitPrediction
from gpucost.notify.compose.digest import digest_message
from gpucost.notify.compose.links import MessageLinks
from gpucost.reports.digest.week_model import IsoWeek
from gpucost.reports.month.budget_status import BudgetStatus, exceed_words
from gpucost.reports.render.html import to_html
from gpucost.service.notifications.budgets import BudgetNotices, BudgetWatch
from gpucost.service.notifications.digests import DigestScheduler
from gpucost.service.notifications.findings_and_alerts import AlertNotices, FindingNotices, keep
from gpucost.service.reporting.budget_reports import ListedBudgets, budget_report
from gpucost.service.reporting.charge_reports import team_statements
from gpucost.service.reporting.month_forecasts import month_forecast
from gpucost.service.reporting.rendering import ReportFormat, render_statements
from gpucost.service.reporting.report_service import ReportService
from gpucost.service.settings.api import ApiSettings
from gpucost.service.wiring.ledger import accounts_of, build_reporting
from tests.ledger.builders import CLUSTER, hour, ingest, line
from tests.service.test_telling import World, alert, group
from tests.service.worlds import Clock
from tests.support.ledgers import new_ledger

OCTOBER = Month(2026, 10)
FIRST_MS = Month(2026, 9).window.start_ms
DAY_17_MS = OCTOBER.window.start_ms + 16 * DAY_MS
NOW_MS = DAY_17_MS + 14 * HOUR_MS
HELD = 8 * PRICE.nano_per_board_hour
"""What a window costs: a day of September and of the first half of October, an hour of the 17th."""
SPENT = 30 * HELD
"""Of October, by 14:00 on the 17th: 16 days and 14 hours."""


def rules_of(*budgets: str, monthly: int | None = None) -> TeamRules:
    own = "" if monthly is None else f", monthly_budget: {monthly / NANO:.9f}"
    listed = "\n".join(f"- {each}" for each in budgets)
    return TeamRules.parse(
        f"version: 1\nteams:\n- {{name: team-00, cost_centre: CC-1{own}}}\n- {{name: other}}\n"
        f"budgets:{' []' if not budgets else ''}\n{listed}\nrules:\n- {{team_from: team_label}}\n",
        "teams.yaml",
    )


def amount(nano: int) -> str:
    return f"{nano / NANO:.9f}"


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """September whole, October up to 14:00 on the 17th."""
    url = new_ledger(tmp_path_factory.mktemp("budgets") / "ledger.db")
    with Ledger.open(url, now=lambda: NOW_MS + HOUR_MS) as found:
        days = Window(FIRST_MS, DAY_17_MS).split(DAY_MS)
        for n, window in enumerate((*days, *Window(DAY_17_MS, NOW_MS).split(HOUR_MS))):
            found.ingest(
                "c",
                window,
                lines_of(window, 8, n, 1),
                observed_ms=window.length_ms,
                rates={PRICE.rate_id: PRICE},
                source="test",
                code_version="test",
                settle=True,
            )
        yield found


def status(ledger: Ledger, rules: TeamRules, name: str, at_ms: int = NOW_MS, **more: bool) -> BudgetStatus:
    reporting = ReportService(ledger, "test", {}, accounts=accounts_of(rules))
    found = budget_report(reporting, EVERYTHING, rules.budget_plans, at_ms - 1, **more)
    return next(each for each in found.budgets if each.name == name)


@pytest.mark.parametrize("subject", ["team: team-00", "cost_centre: CC-1", "cluster: c", "project: p"])
def test_a_budget_that_is_crossed_at_two_in_the_afternoon(ledger: Ledger, subject: str) -> None:
    rules = rules_of(f"{{name: b, {subject}, amount: '{amount(SPENT)}', thresholds: [50, 100]}}")
    found = status(ledger, rules, "b")
    assert (found.spent_nano, found.left_nano, found.part) == (SPENT, 0, 1)
    assert [(each.part, each.reached_at) for each in found.thresholds if each.kind == "actual"] == [
        (Fraction(1, 2), "2026-10-16T00:00:00Z"),
        (Fraction(1), "2026-10-17T14:00:00Z"),
    ]
    assert exceed_words(found) == "exceeded on 2026-10-17 14:00 UTC"


def test_the_monthly_budget_of_a_team_is_one(ledger: Ledger) -> None:
    found = status(ledger, rules_of(monthly=2 * SPENT), "team-00")
    assert (found.of, found.period, found.part) == ("team-00", "2026-10", Fraction(1, 2))
    assert [each.part for each in found.thresholds] == [Fraction(8, 10), 1, 1]


def test_without_thresholds_nothing_is_told_unless_asked_for(ledger: Ledger) -> None:
    quiet = "{name: quiet, team: team-00, amount: 1, thresholds: []}"
    expected = "{name: expected, team: team-00, amount: 1, thresholds: [], forecast_thresholds: [90]}"
    rules = rules_of(quiet, expected)
    assert status(ledger, rules, "quiet").thresholds == ()
    assert [each.part for each in status(ledger, rules, "expected").thresholds] == [Fraction(9, 10)]


def test_only_what_is_spent_while_it_is_in_force_counts(ledger: Ledger) -> None:
    """From the 9th on, to the 13th: 23 of 31 days of the amount, and four of it; 8 days and 14 hours of the
    first are known by 14:00 on the 17th. September from the 16th carries over what 15 of 30 days left."""
    whole = f"team: team-00, amount: '{amount(31 * HELD)}'"
    late = status(ledger, rules_of(f"{{name: b, {whole}, valid_from: 2026-10-09}}"), "b")
    assert (late.amount_nano, late.spent_nano) == (23 * HELD, 22 * HELD)
    assert late.thresholds[0].reached_at == "2026-10-17T11:00:00Z"
    assert "in force 2026-10-09 00:00 to 2026-11-01 00:00 UTC" in late.note
    rules = rules_of(f"{{name: b, {whole}, valid_from: 2026-10-09, valid_to: 2026-10-13}}")
    over = status(ledger, rules, "b")
    assert (over.amount_nano, over.spent_nano, over.forecast) == (4 * HELD, 4 * HELD, None)
    noon = f"{{name: b, {whole}, valid_from: '2026-10-17T12:00:00Z'}}"
    found = status(ledger, rules_of(noon), "b")
    assert (found.spent_nano, found.amount_nano) == (2 * HELD, 29 * HELD // 2)
    less = noon.replace(amount(31 * HELD), amount(62 * HELD // 29))
    assert status(ledger, rules_of(less), "b").thresholds[1].reached_at == "2026-10-17T13:00:00Z"
    carried = (
        f"{{name: b, team: team-00, amount: '{amount(30 * HELD)}', carry_over: true, valid_from: 2026-09-16}}"
    )
    assert status(ledger, rules_of(carried), "b").carried_nano == 0


def test_a_budget_that_is_overspent_before_it_begins_is_exceeded_at_once(ledger: Ledger) -> None:
    """September cost 30 of its 10: 20 are taken off October's. Of a budget of nothing the first hour is too
    much."""
    less = f"{{name: b, team: team-00, amount: '{amount(10 * HELD)}', carry_over: true}}"
    found = status(ledger, rules_of(less), "b")
    assert (found.total_nano, found.part) == (-10 * HELD, None)
    assert {each.reached_at for each in found.thresholds if each.kind == "actual"} == {"2026-10-01T00:00:00Z"}
    assert exceed_words(found) == "exceeded on 2026-10-01 00:00 UTC"
    nothing = status(ledger, rules_of("{name: b, team: team-00, amount: 0}"), "b")
    assert {each.reached_at for each in nothing.thresholds if each.kind == "actual"} == {
        "2026-10-02T00:00:00Z"
    }
    unused = status(ledger, rules_of("{name: b, team: other, amount: 0}"), "b")
    assert unused.reached == ()
    app = create_app(
        ledger,
        ApiSettings(auth="off"),
        now=lambda: NOW_MS,
        plans=rules_of(
            less.replace("name: b", "name: less"), "{name: none, team: other, amount: 0}"
        ).budget_plans,
    )
    text = TestClient(app, base_url="http://localhost").get("/metrics").text
    used = {
        line.split('"')[1]: line.split()[-1]
        for line in text.splitlines()
        if line.startswith("gpucost_budget_used_ratio{")
    }
    assert used == {"less": "+Inf", "none": "0.0"}


def test_time_without_a_price_is_said_and_no_forecast_is_made_of_it(tmp_path: Path) -> None:
    """Twenty days of which the last one has no price: nobody knows what it cost."""
    begin_ms = OCTOBER.window.start_ms
    with Ledger.open(new_ledger(tmp_path / "l.db"), now=lambda: begin_ms + 20 * DAY_MS) as own:
        for n, day in enumerate(Window(begin_ms, begin_ms + 20 * DAY_MS).split(DAY_MS)):
            lines = lines_of(day, 8, n, 1)
            if n == 19:
                lines = lines.assign(nano=pd.array([None] * len(lines), dtype="Int64"), rate_id="")
            made = {"observed_ms": DAY_MS, "source": "test", "code_version": "test", "settle": True}
            own.ingest("c", day, lines, rates={PRICE.rate_id: PRICE}, **made)
        rules = rules_of("{name: b, team: team-00, amount: 1000000}")
        found = status(own, rules, "b", begin_ms + 20 * DAY_MS)
        assert found.spent_nano == 19 * HELD
        assert "8.0 GPU-hours without a price are in no amount" in found.note
        assert found.forecast is not None
        assert found.forecast.expected_nano is None
        assert "lack prices" in found.forecast.reason


def test_a_forecast_needs_the_period_so_far(ledger: Ledger) -> None:
    found = status(ledger, rules_of("{name: b, team: team-00, amount: 1000000, period: year}"), "b")
    assert found.forecast is not None
    assert found.forecast.expected_nano is None
    assert "of the time so far of 2026 is in the ledger" in found.forecast.reason


def test_amounts_of_another_currency_are_not_carried_over(ledger: Ledger) -> None:
    first = "{name: b, team: team-00, amount: 40000, currency: EUR, valid_to: 2026-10-01}"
    rules = rules_of(
        first, "{name: b, team: team-00, amount: 40000, carry_over: true, valid_from: 2026-10-01}"
    )
    found = status(ledger, rules, "b")
    assert found.carried_nano is None
    assert "in another currency" in found.note


def test_a_budget_and_the_months_forecast_say_the_same(ledger: Ledger) -> None:
    rules = rules_of("{name: b, team: team-00, amount: 1000000}")
    found = status(ledger, rules, "b").forecast
    month = month_forecast(ReportService(ledger, "test", {}), EVERYTHING, OCTOBER, NOW_MS)
    assert found is not None
    assert month is not None
    [team] = month.teams
    assert (found.expected_nano, found.low_nano, found.high_nano) == (
        team.expected_nano,
        team.low_nano,
        team.high_nano,
    )


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        ("{name: b, team: nobody, amount: 1}", "budgets[0].team"),
        ("{name: b, team: __unallocated__, amount: 1}", "budgets[0].team"),
        ("{name: b, cost_centre: CC-9, amount: 1}", "budgets[0].cost_centre"),
        ("{name: b, team: other}", "budgets[0].amount"),
        ("{name: b, team: other, amount: 1, thresholds: [0.8]}", "budgets[0].thresholds"),
    ],
)
def test_a_budget_that_means_nothing_is_refused(entry: str, field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        rules_of(entry)
    assert refused.value.field == field


def test_when_it_will_be_exceeded_with_an_interval(ledger: Ledger) -> None:
    """As of the end of the 10th: ten days, and the same each day to come. Twenty-two days' worth is used up
    on the 23rd."""
    rules = rules_of(f"{{name: b, team: team-00, amount: '{amount(22 * HELD)}'}}")
    found = status(ledger, rules, "b", OCTOBER.window.start_ms + 10 * DAY_MS)
    assert found.forecast is not None
    assert (found.forecast.exceeds_on, found.forecast.expected_nano) == ("2026-10-23", 31 * HELD)
    assert exceed_words(found).startswith("will exceed on 2026-10-23 (80%: 2026-10-23 to ")
    [expected] = [each for each in found.thresholds if each.kind == "forecast"]
    assert expected.reached_at == "2026-10-11T00:00:00Z"


def test_no_more_is_expected_than_all_gpus_cost(tmp_path: Path) -> None:
    """Sixteen GPUs until the 9th, and eight on the 10th, when no more are there: 21 days of eight to come."""
    end_ms = OCTOBER.window.start_ms + 10 * DAY_MS
    with Ledger.open(new_ledger(tmp_path / "ledger.db"), now=lambda: end_ms + HOUR_MS) as ledger:
        for n, day in enumerate(Window(FIRST_MS - 31 * DAY_MS, end_ms).split(DAY_MS)):
            lines = lines_of(day, 8 if day.end_ms == end_ms else 16, n, 1)
            rates = {PRICE.rate_id: PRICE}
            made = {"source": "test", "code_version": "test"}
            ledger.ingest("c", day, lines, observed_ms=DAY_MS, rates=rates, settle=True, **made)
        for subject in ("team: team-00", "cluster: c"):
            rules = rules_of(f"{{name: b, {subject}, amount: 5}}")
            found = status(ledger, rules, "b", end_ms)
            assert found.forecast is not None
            assert found.forecast.expected_nano == (9 * 2 + 1 + 21) * HELD


def test_what_is_left_is_carried_over_and_what_is_overspent_taken_off(ledger: Ledger) -> None:
    each = "{{name: b, team: team-00, amount: '{}', carry_over: true}}"
    less = status(ledger, rules_of(each.format(amount(40 * HELD))), "b")
    assert (less.carried_nano, less.total_nano) == (10 * HELD, 50 * HELD)
    more = status(ledger, rules_of(each.format(amount(25 * HELD))), "b")
    assert (more.carried_nano, more.total_nano) == (-5 * HELD, 20 * HELD)
    november = status(ledger, rules_of(each.format(amount(40 * HELD))), "b", OCTOBER.window.end_ms + DAY_MS)
    assert november.carried_nano is None
    assert "2026-10 left is not known" in november.note


def test_quarters_currencies_and_a_history_that_changes_in_the_middle(ledger: Ledger) -> None:
    each = "{{name: q, team: team-00, period: quarter, amount: '{}', {}: 2026-11-16}}"
    rules = rules_of(
        each.format(amount(92 * HELD), "valid_to"),
        each.format(amount(184 * HELD), "valid_from"),
        "{name: eur, team: team-00, amount: 5, currency: EUR}",
    )
    quarter = status(ledger, rules, "q")
    assert (quarter.period, quarter.amount_nano) == ("2026-Q4", 138 * HELD)
    assert quarter.spent_nano == SPENT
    euros = status(ledger, rules, "eur")
    assert (euros.spent_nano, euros.reached, euros.currency) == (None, (), "EUR")
    assert "the ledger is in USD" in euros.note


def test_nobody_sees_the_budgets_of_others(ledger: Ledger) -> None:
    rules = rules_of("{name: b, cluster: c, amount: 5}", monthly=SPENT)
    reporting = ReportService(ledger, "test", {}, accounts=accounts_of(rules))
    for scope, names in (
        (EVERYTHING, ["b", "team-00"]),
        (Scope(frozenset({"team-00"})), ["team-00"]),
        (Scope(frozenset({"other"})), []),
        (Scope(None, frozenset({"c"})), ["b"]),
        (Scope(frozenset({"team-00"}), frozenset({"c"})), []),
    ):
        found = budget_report(reporting, scope, rules.budget_plans, NOW_MS - 1)
        assert [each.name for each in found.budgets] == names
        assert {each.name for each in found.entries} == set(names)


def test_the_budgets_of_the_list_stand_in_report_statement_and_digest(ledger: Ledger) -> None:
    """Each of who may see it; the monthly budget of a team is in its row."""
    rules = rules_of(
        f"{{name: quarter, team: team-00, period: quarter, amount: '{amount(4 * SPENT)}'}}",
        "{name: b, cluster: c, amount: 5}",
        monthly=SPENT,
    )
    reporting = build_reporting(ledger, rules, PLAIN_BOOK)
    whole = reporting.month(EVERYTHING, OCTOBER)
    assert whole is not None
    assert [(each.name, each.spent_nano) for each in whole.report.budgets] == [
        ("b", SPENT),
        ("quarter", SPENT),
    ]
    of_team = reporting.month(Scope(frozenset({"team-00"})), OCTOBER)
    assert of_team is not None
    # What all GPUs cost in a day caps a forecast, and is not told to a team.
    told, all_told = (
        [replace(each, forecast=None) for each in found]
        for found in (of_team.report.budgets, whole.report.budgets[1:])
    )
    assert told == all_told
    assert of_team.report.budgets[0].forecast is not None
    assert ">quarter<" in to_html(whole.report)
    made = team_statements(reporting, EVERYTHING, OCTOBER, PLAIN_BOOK, {}, ["team-00"])
    page = render_statements(made.statements, ReportFormat.HTML)
    assert "Budget quarter, 2026-Q4: 25% of " in str(page)
    digest = DigestScheduler(reporting, rules.budgets).week(IsoWeek.parse("2026-W41"), "team-00")
    assert digest is not None
    [section] = [each for each in digest_message(digest, MessageLinks()).sections if each.title == "Budgets"]
    assert section.items[0].startswith("Budget quarter, 2026-Q4: ")


def test_a_threshold_is_told_once_over_restarts(ledger: Ledger) -> None:
    rules = rules_of(monthly=SPENT)
    clock = Clock(NOW_MS)

    def source() -> BudgetNotices:
        reporting = ReportService(ledger, "test", {}, accounts=accounts_of(rules))
        return BudgetNotices(BudgetWatch(reporting, rules.budget_plans), MessageLinks())

    world = World(ledger, clock, sources={"budgets": source()})
    for _ in range(2):
        world.turn(minutes=2)
    world.sources = {"budgets": source()}
    world.restart()
    world.turn(minutes=2)
    assert [title for _, title in world.room.of("platform")] == ["Budget team-00: 100% reached in 2026-10"]
    [message] = [message for name, _, message in world.room.posts if name == "platform"]
    assert "100% was reached by 2026-10-17 14:00 UTC" in message.summary
    assert ("Exceedance", "exceeded on 2026-10-17 14:00 UTC") in [
        (fact.name, fact.value) for fact in message.facts
    ]
    [causes] = [section for section in message.sections if section.title == "Dearest causes"]
    assert len(causes.items) == 2


def test_an_alert_about_a_budget_is_told_as_the_budget(ledger: Ledger) -> None:
    """Of the other, Alertmanager says what no threshold does."""
    rules = rules_of(
        "{name: half, cluster: c, amount: 1, thresholds: [], forecast_thresholds: []}", monthly=SPENT
    )
    reporting = ReportService(ledger, "test", {}, accounts=accounts_of(rules))
    budgets = BudgetNotices(BudgetWatch(reporting, rules.budget_plans), MessageLinks())
    groups = AlertNotices(ledger, MessageLinks())
    alerts = FindingNotices(ledger, MessageLinks(), groups, is_told=budgets.tells).alerts
    for name in ("team-00", "half"):
        about = {"alertname": "GpuCostBudgetExceeded", "budget": name, "period": "2026-10", "team": "team-00"}
        keep(ledger, group(alert(**about), key=name))
    world = World(ledger, Clock(NOW_MS), sources={"budgets": budgets, "alerts": alerts})
    world.turn(minutes=2)
    told = [message for name, _, message in world.room.posts if name == "platform"]
    [other] = [each for each in told if not each.title.startswith("Budget team-00")]
    assert other.title.startswith("GpuCostBudgetExceeded")


def test_the_api_says_the_same(ledger: Ledger) -> None:
    rules = rules_of(monthly=SPENT)
    app = create_app(ledger, ApiSettings(auth="off"), now=lambda: NOW_MS - 1, budgets=rules.budgets)
    client = TestClient(app, base_url="http://localhost")
    [found] = client.get("/v1/budgets/status").json()["budgets"]
    assert (found["name"], found["spent_nano"], found["part"]) == ("team-00", SPENT, 1.0)
    assert client.get("/v1/budgets/status?name=nobody").status_code == 422
    metrics = client.get("/metrics").text
    assert 'gpucost_budget_used_ratio{budget="team-00",period="2026-10",subject="team-00"' in metrics


@pytest.mark.parametrize(
    ("budget", "field"),
    [
        ("{name: b, amount: 5}", "budgets[0].team"),
        ("{name: b, team: a, queue: q, amount: 5}", "budgets[0].team"),
        ("{name: b, team: a, amount: 5, period: week}", "budgets[0].period"),
        ("{name: b, team: a, amount: 5, thresholds: [0]}", "budgets[0].thresholds"),
        ("{name: b, team: a, amount: 5, currency: usd}", "budgets[0].currency"),
        ("{name: team-00, team: team-00, amount: 5}", "budgets[0].name"),
    ],
)
def test_what_is_wrong_is_refused_with_its_field(budget: str, field: str) -> None:
    with pytest.raises(ConfigError) as error:
        rules_of(budget, monthly=NANO)
    assert field in str(error.value)


def test_two_of_a_name_at_a_time_are_refused() -> None:
    with pytest.raises(ConfigError, match="the same name"):
        rules_of("{name: b, team: a, amount: 5}", "{name: b, team: a, amount: 6, valid_from: 2026-10-01}")


def test_reports_follow_what_is_foretold(tmp_path: Path) -> None:
    """No window changes with it, and forecasts of budgets do."""
    plans = rules_of("{name: lab, team: team-00, amount: 1}")
    with Ledger.open(new_ledger(tmp_path / "l.db"), now=lambda: NOW_MS) as ledger:
        window = hour(0, OCTOBER)
        ingest(ledger, window, line(window))
        reporting, listed = ReportService(ledger, "test", {}), ListedBudgets(plans.budget_plans)
        before = listed.beside(reporting, window.end_ms)
        assert listed.beside(reporting, window.end_ms) == before
        ledger.foretell(
            CLUSTER, [WaitPrediction("w", "n", "j", "q", "", window.end_ms, HOUR_MS, None, DAY_MS, gpus=8)]
        )
        assert listed.beside(reporting, window.end_ms) != before
