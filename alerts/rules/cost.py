"""Money: budgets that are spent too fast, and teams whose cost jumps. Months are calendar months, UTC."""

from __future__ import annotations

from alerts.rules import thresholds as t
from alerts.rules.model import (
    TEAM,
    TEAM_EVERYWHERE,
    AlertRule,
    AlertSeverity,
    RecordingRule,
    RuleGroup,
)

_SETTLED_END = "cluster:gpucost_ledger_settled_end_timestamp_seconds:max"
_SPENT = "team:gpucost_team_cost:sum"
_BUDGET = "team:gpucost_team_budget:max"
_NOW = "cluster_team:gpucost_team_cost_per_hour:max"
ELAPSED = "month:gpucost_seconds:elapsed"
TOTAL = "month:gpucost_seconds:total"
USED = "team:gpucost_team_budget:used_ratio"
UNTIL_NOW = "team:gpucost_team_cost:until_now"
PROJECTED = "team:gpucost_team_cost:projected"
_BEGUN = f"and on () {ELAPSED} >= {t.MONTH_BEGUN}"

# Rate of spending of the last day, per hour: the cost of the known hours, over the number of known hours.
_PACE = (
    "cluster_team:gpucost_team_cost_per_hour:sum_over_time1d / on (currency) group_left () "
    "currency:gpucost_team_cost_per_hour:count_over_time1d"
)
# Seconds of this month that are over and in no settled window yet, by cluster.
_UNSEEN = f"clamp_max(clamp_min(time() - {_SETTLED_END}, 0), scalar({ELAPSED}))"


def _with_pace(seconds: str) -> str:
    """What was spent, plus the rate of the last day for so many ``seconds`` (by cluster) more. A team without
    a cost in the last day has stopped: nothing more."""
    more = f"sum by (team, currency) (({_PACE}) * on (cluster) group_left () ({seconds}) / 3600)"
    return f"({more} or 0 * {_SPENT}) + on (team, currency) {_SPENT}"


# The same for the day that ended an hour ago.
_TEAM_DAY = f'sum by (cluster, team, currency) (sum_over_time({_NOW}{{team!~"__.*"}}[1d] offset 1h))'
_DAY = (
    f"{_TEAM_DAY} / on (cluster, currency) group_left () "
    "count_over_time(cluster:gpucost_team_cost_per_hour:sum[1d] offset 1h)"
)
_CALM = f'(({_DAY}) or 0 * {_NOW}{{team!~"__.*"}})'

PACE = AlertRule(
    "GpuCostBudgetPaceHigh",
    f"{UNTIL_NOW} / on (team, currency) ({_BUDGET} > 0) "
    f"/ on () group_left () ({ELAPSED} / {TOTAL}) > {t.PACE} {_BEGUN}",
    AlertSeverity.INFO,
    "A team spends its monthly budget too fast.",
    "Team {{ $labels.team }} has spent {{ $value | humanize }} times what its budget allows for this part "
    "of the month.",
    TEAM_EVERYWHERE,
    t.TWO_HOURS,
    thresholds=(t.PACE, t.MONTH_BEGUN, t.HELD_WHILE_AWAY),
)

WILL_EXCEED = AlertRule(
    "GpuCostBudgetProjectedToExceed",
    f"{PROJECTED} / on (team, currency) ({_BUDGET} > 0) > {t.PROJECTED} {_BEGUN}",
    AlertSeverity.WARNING,
    "At its pace of the last day, a team will exceed its monthly budget.",
    "Team {{ $labels.team }} will have spent {{ $value | humanizePercentage }} of its budget in "
    "{{ $labels.currency }} by "
    "the end of the month, if it goes on as in the last 24 h.",
    TEAM_EVERYWHERE,
    t.TWO_HOURS,
    thresholds=(t.PROJECTED, t.MONTH_BEGUN, t.HELD_WHILE_AWAY),
)

EXCEEDED = AlertRule(
    "GpuCostBudgetExceeded",
    f"{USED} > 1",
    AlertSeverity.WARNING,
    "A team has spent more than its monthly budget.",
    "Team {{ $labels.team }} has spent {{ $value | humanizePercentage }} of its budget in "
    "{{ $labels.currency }} for this "
    "month. Nothing is refused because of it.",
    TEAM_EVERYWHERE,
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
        RecordingRule(ELAPSED, "86400 * (day_of_month() - 1) + 3600 * hour() + 60 * minute()"),
        RecordingRule(TOTAL, "86400 * days_in_month()"),
        RecordingRule(USED, f"{_SPENT} / on (team, currency) ({_BUDGET} > 0)"),
        RecordingRule(UNTIL_NOW, _with_pace(_UNSEEN)),
        RecordingRule(PROJECTED, _with_pace(f"{_UNSEEN} + scalar({TOTAL} - {ELAPSED})")),
        PACE,
        WILL_EXCEED,
        EXCEEDED,
        RISE,
    ),
)
