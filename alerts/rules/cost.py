"""Money: budgets that are exceeded, or will be by the forecast; and teams whose cost jumps."""

from __future__ import annotations

from alerts.rules import thresholds as t
from alerts.rules.model import (
    TEAM,
    AlertRule,
    AlertSeverity,
    RecordingRule,
    RuleGroup,
    labelled,
    last_known,
)

_NOW = "cluster_team:gpucost_team_cost_per_hour:max"
USED = "budget:gpucost_budget_used_ratio:max"
EXPECTED = "budget:gpucost_budget_expected_ratio:max"
_ABOUT = ("budget", "subject_kind", "subject", "period")
_BOARD = (
    "{{ if $labels.team }}d/gpucost-team?var-team={{ $labels.team | urlquery }}"
    "{{ else }}d/gpucost-fleet{{ end }}"
)


def _budgets(metric: str, record: str, *matchers: str) -> str:
    """A gauge of every budget, kept while the service is away; with the labels ``team`` or ``cluster`` where
    it is of one, so that it goes where other alerts of these go."""

    def of(*more: str) -> str:
        return f"max by ({', '.join(_ABOUT)}) ({metric}{{{', '.join((*matchers, *more))}}})"

    named = [labelled(of(f'subject_kind="{kind}"'), kind, "subject") for kind in ("team", "cluster")]
    return last_known(" or ".join((*named, of('subject_kind!~"team|cluster"'))), record)


# What a day cost per hour that ended an hour ago.
_TEAM_DAY = f'sum by (cluster, team, currency) (sum_over_time({_NOW}{{team!~"__.*"}}[1d] offset 1h))'
_DAY = (
    f"{_TEAM_DAY} / on (cluster, currency) group_left () "
    "count_over_time(cluster:gpucost_team_cost_per_hour:sum[1d] offset 1h)"
)
_CALM = f'(({_DAY}) or 0 * {_NOW}{{team!~"__.*"}})'

WILL_EXCEED = AlertRule(
    "GpuCostBudgetProjectedToExceed",
    f"{EXPECTED} > {t.PROJECTED} and on () day_of_month() > {t.MONTH_BEGUN}",
    AlertSeverity.WARNING,
    "More than a budget is expected to be spent.",
    "Budget {{ $labels.budget }} of {{ $labels.subject_kind }} {{ $labels.subject }}: "
    "{{ $value | humanizePercentage }} of it is expected to be spent in {{ $labels.period }}.",
    _BOARD,
    t.TWO_HOURS,
    thresholds=(t.PROJECTED, t.MONTH_BEGUN, t.HELD_WHILE_AWAY),
)

EXCEEDED = AlertRule(
    "GpuCostBudgetExceeded",
    f"{USED} > 1",
    AlertSeverity.WARNING,
    "More than a budget is spent.",
    "Budget {{ $labels.budget }} of {{ $labels.subject_kind }} {{ $labels.subject }}: "
    "{{ $value | humanizePercentage }} of it is spent in {{ $labels.period }}. "
    "Nothing is refused because of it.",
    _BOARD,
    t.BLIP,
    thresholds=(t.HELD_WHILE_AWAY,),
)

RISE = AlertRule(
    "GpuCostTeamCostRise",
    f"({_NOW} - on (cluster, team, currency) {_CALM} > {t.RISE_FLOOR}) "
    f"and on (cluster, team, currency) {_NOW} > {t.RISE} * {_CALM} "
    f"unless on (cluster, team, currency) {_NOW} <= {t.RISE} * ({_NOW} offset 1w) "
    "unless on (cluster) (cluster:gpucost_team_cost_per_hour:sum "
    "unless on (cluster) cluster:gpucost_team_cost_per_hour:sum offset 1d)",
    AlertSeverity.WARNING,
    "A team's cost per hour has risen suddenly.",
    "Team {{ $labels.team }} in cluster {{ $labels.cluster }} costs {{ $labels.currency }} "
    '{{ $value | printf "%.2f" }} an hour more than in the 24 h before, '
    f"which is more than {t.RISE} times as much, and more than {t.RISE} times the same time last week.",
    TEAM,
    t.TWO_HOURS,
    thresholds=(t.RISE, t.RISE_FLOOR, t.HELD_WHILE_AWAY),
)

GROUP = RuleGroup(
    "gpucost-cost",
    (
        RecordingRule(USED, _budgets("gpucost_budget_used_ratio", USED)),
        RecordingRule(EXPECTED, _budgets("gpucost_budget_expected_ratio", EXPECTED, 'edge="expected"')),
        WILL_EXCEED,
        EXCEEDED,
        RISE,
    ),
)
