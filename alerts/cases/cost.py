"""Money, over days: samples are an hour apart, and time begins with a month of 31 days (January 1970)."""

from __future__ import annotations

from alerts.cases.helpers import always, lasts, samples
from alerts.rules import thresholds as t
from alerts.rules.model import AlertCase, ExpectedAlert

_STEP = 3_600
_DAY = 24
"""Samples in a day."""
_DAY_S = 86_400
_TEAM = "gpucost-team?var-team=vision"
_HERE = 'gpu_cluster="prod", owner_team="vision"'
_THERE = 'gpu_cluster="test", owner_team="vision"'
_BUDGET = 'gpucost_team_budget_usd{owner_team="vision"}'
_LABELS = {"team": "vision", "currency": "USD"}
_MONTH_H = 31 * 24


def _warning(
    description: str, dashboard: str = _TEAM, severity: str = "warning", **labels: str
) -> ExpectedAlert:
    return ExpectedAlert({"severity": severity, **_LABELS, **labels}, description, dashboard)


_PACE = "GpuCostBudgetPaceHigh"
_WILL = "GpuCostBudgetProjectedToExceed"
_OVER = "GpuCostBudgetExceeded"
_RISE = "GpuCostTeamCostRise"
_BEGUN = int(t.MONTH_BEGUN.value)

# A budget of one per hour of the month, and spending of so much per hour, in two clusters together.
_SETTLED = 'gpucost_ledger_settled_end_timestamp_seconds{gpu_cluster="prod"}'
_UP_TO_DATE = samples((f"0+{_STEP}", 9 * _DAY))
_PER_HOUR = f"gpucost_team_cost_per_hour_usd{{{_HERE}}}"


def _rises(low: object, high: object, steps: int) -> str:
    """Eight days of ``low``, so that last week is known, then ``high`` for so many hours, then ``low``."""
    return samples((low, 8 * _DAY), (high, steps), (low, _DAY))


_RISES_AT = 8 * _DAY_S

CASES: tuple[AlertCase, ...] = (
    AlertCase(
        _PACE,
        "twice as fast as the budget allows, from the first of the month on, in two clusters together",
        {
            f"gpucost_team_cost_usd{{{_HERE}}}": samples(("0+1", 5 * _DAY), ("0+0", _DAY)),
            f"gpucost_team_cost_usd{{{_THERE}}}": samples(("0+1", 5 * _DAY), ("0+0", _DAY)),
            _BUDGET: samples((_MONTH_H, 6 * _DAY)),
        },
        silent=(_BEGUN + lasts(_PACE) - _STEP,),
        firing={
            _BEGUN + lasts(_PACE): (
                _warning(
                    "Team vision has spent 2 times what its budget allows for this part of the month.",
                    severity="info",
                ),
            )
        },
        resolved=(5 * _DAY_S + _STEP,),
        interval=_STEP,
    ),
    AlertCase(
        _PACE,
        "a fifth too fast, and not more",
        {
            f"gpucost_team_cost_usd{{{_HERE}}}": samples(("0+1.2", 6 * _DAY)),
            _BUDGET: samples((_MONTH_H * 1.001, 6 * _DAY)),
        },
        silent=(5 * _DAY_S,),
        interval=_STEP,
    ),
    AlertCase(
        _WILL,
        "at last day's pace all but a little of the budget, then more than it, then again less",
        {
            f"gpucost_team_cost_usd{{{_HERE}}}": always(100, 8 * _DAY),
            _PER_HOUR: samples((0.9, 4 * _DAY), (1.1, 2 * _DAY), (0.2, 2 * _DAY)),
            _SETTLED: _UP_TO_DATE,
            _BUDGET: always(100 + 27 * 24, 8 * _DAY),
        },
        silent=(_BEGUN + lasts(_WILL), 4 * _DAY_S, 4 * _DAY_S + 14 * _STEP + lasts(_WILL)),
        firing={
            4 * _DAY_S + 15 * _STEP + lasts(_WILL): (
                _warning(
                    "Team vision will have spent 101.4% of its budget in USD by the end of the month, if "
                    "it goes on as in "
                    "the last 24 h."
                ),
            )
        },
        resolved=(7 * _DAY_S,),
        interval=_STEP,
    ),
    AlertCase(
        _WILL,
        "three days behind: what is in no window yet was spent as well, at the pace of before",
        {
            f"gpucost_team_cost_usd{{{_HERE}}}": samples(("0+1.001", 3 * _DAY), (72.072, 3 * _DAY)),
            _PER_HOUR: always(1.001, 6 * _DAY),
            _SETTLED: samples((f"0+{_STEP}", 3 * _DAY), (3 * _DAY_S, 3 * _DAY)),
            _BUDGET: always(_MONTH_H, 6 * _DAY),
        },
        firing={
            6 * _DAY_S - _STEP: (
                _warning(
                    "Team vision will have spent 100.1% of its budget in USD by the end of the month, if "
                    "it goes on as in "
                    "the last 24 h."
                ),
            )
        },
        interval=_STEP,
    ),
    AlertCase(
        _PACE,
        "three days behind, likewise",
        {
            f"gpucost_team_cost_usd{{{_HERE}}}": samples(("0+2", 3 * _DAY), (144, 3 * _DAY)),
            _PER_HOUR: always(2, 6 * _DAY),
            _SETTLED: samples((f"0+{_STEP}", 3 * _DAY), (3 * _DAY_S, 3 * _DAY)),
            _BUDGET: always(_MONTH_H, 6 * _DAY),
        },
        firing={
            5 * _DAY_S: (
                _warning(
                    "Team vision has spent 2 times what its budget allows for this part of the month.",
                    severity="info",
                ),
            )
        },
        interval=_STEP,
    ),
    AlertCase(
        _WILL,
        "it has spent more than its budget and stopped two days ago; another has stopped below it",
        {
            f"gpucost_team_cost_usd{{{_HERE}}}": samples(("0+10", 2 * _DAY), (480, 4 * _DAY)),
            'gpucost_team_cost_usd{gpu_cluster="prod", owner_team="calm"}': always(300, 6 * _DAY),
            _PER_HOUR: samples((10, 2 * _DAY), ("stale", 1)),
            'gpucost_team_cost_per_hour_usd{gpu_cluster="prod", owner_team="calm"}': samples(
                (6, 2 * _DAY), ("stale", 1)
            ),
            'gpucost_team_cost_per_hour_usd{gpu_cluster="prod", owner_team="other"}': always(1, 6 * _DAY),
            _SETTLED: _UP_TO_DATE,
            _BUDGET: always(400, 6 * _DAY),
            'gpucost_team_budget_usd{owner_team="calm"}': always(400, 6 * _DAY),
        },
        firing={
            5 * _DAY_S: (
                _warning(
                    "Team vision will have spent 120% of its budget in USD by the end of the month, if "
                    "it goes on as in "
                    "the last 24 h."
                ),
            )
        },
        interval=_STEP,
    ),
    AlertCase(
        _OVER,
        "just the budget, then a cent more; in the next month it begins anew. The ledger counts in euros",
        {
            f'gpucost_team_cost{{{_HERE}, currency="EUR"}}': samples((500, 10), (500.01, 10), (3, 10)),
            'gpucost_team_budget{owner_team="vision", currency="EUR"}': always(500, 30),
            'gpucost_team_cost{gpu_cluster="prod", owner_team="nobudget", currency="EUR"}': always(9_000, 30),
        },
        silent=(9 * _STEP, 10 * _STEP),
        firing={
            11 * _STEP: (
                _warning(
                    "Team vision has spent 100% of its budget in EUR for this month. Nothing is refused "
                    "because of it.",
                    currency="EUR",
                ),
            )
        },
        resolved=(20 * _STEP,),
        interval=_STEP,
    ),
    AlertCase(
        _RISE,
        "three times as much as in the day before and the same time last week, for two windows",
        {
            _PER_HOUR: _rises(20, 60, 5),
            'gpucost_team_cost_per_hour_usd{gpu_cluster="prod", owner_team="__unallocated__"}': _rises(
                20, 900, 6
            ),
            'gpucost_team_cost_per_hour_usd{gpu_cluster="prod", owner_team="calm"}': always(20, 9 * _DAY),
        },
        silent=(_RISES_AT - _STEP, _RISES_AT + lasts(_RISE) - _STEP),
        firing={
            _RISES_AT + lasts(_RISE): (
                _warning(
                    "Team vision in cluster prod costs USD 36.80 an hour more than in the 24 h before, "
                    "which is more than "
                    "2 times as much, and more than 2 times the same time last week.",
                    "gpucost-team?var-cluster=prod&var-team=vision",
                    cluster="prod",
                ),
            )
        },
        resolved=(_RISES_AT + 5 * _STEP,),
        interval=_STEP,
    ),
    AlertCase(
        _RISE,
        "just twice; or ten times as much of little; or as much as last week at this time: no rise",
        {
            _PER_HOUR: _rises(40, 80, 12),
            f"gpucost_team_cost_per_hour_usd{{{_THERE}}}": _rises(2, 20, 12),
            'gpucost_team_cost_per_hour_usd{gpu_cluster="prod", owner_team="weekly"}': samples(
                (10, _DAY), (100, 12), (10, 7 * _DAY - 12), (100, 12), (10, _DAY)
            ),
        },
        silent=(_RISES_AT + lasts(_RISE), _RISES_AT + lasts(_RISE) + _STEP, _RISES_AT + 6 * 3_600),
        interval=_STEP,
    ),
    AlertCase(
        _RISE,
        "a team that was not there before, in a cluster that was",
        {
            'gpucost_team_cost_per_hour_usd{gpu_cluster="prod", owner_team="calm"}': always(20, 9 * _DAY),
            _PER_HOUR: samples(("_", 8 * _DAY), (30, 8), ("stale", 1)),
            'gpucost_team_cost_per_hour_usd{gpu_cluster="new", owner_team="vision"}': samples(
                ("_", 8 * _DAY), (900, 8)
            ),
        },
        silent=(_RISES_AT + lasts(_RISE) - _STEP,),
        firing={
            _RISES_AT + lasts(_RISE): (
                _warning(
                    "Team vision in cluster prod costs USD 27.60 an hour more than in the 24 h before, "
                    "which is more than "
                    "2 times as much, and more than 2 times the same time last week.",
                    "gpucost-team?var-cluster=prod&var-team=vision",
                    cluster="prod",
                ),
            )
        },
        resolved=(_RISES_AT + 8 * _STEP,),
        interval=_STEP,
    ),
)

_OVER_BUDGET = _warning(
    "Team vision has spent 100.2% of its budget in USD for this month. Nothing is refused because of it."
)
_MINUTES = samples((501, 20), ("stale", 1), ("_", 2), (501, 20), (400, 10))
HELD: tuple[AlertCase, ...] = (
    AlertCase(
        _OVER,
        "three scrapes of the service fail: what it last said is held, and what it says then counts",
        {
            "gpucost_ledger_up": samples((1, 20), ("stale", 1), ("_", 2), (1, 30)),
            f"gpucost_team_cost_usd{{{_HERE}}}": _MINUTES,
            _BUDGET: samples((500, 20), ("stale", 1), ("_", 2), (500, 30)),
        },
        firing={minute * 60: (_OVER_BUDGET,) for minute in (19, 20, 21, 22, 23, 42)},
        resolved=(43 * 60,),
    ),
    AlertCase(
        _OVER,
        "the budget is taken away while the service is there: nothing is held",
        {
            "gpucost_ledger_up": always(1, 40),
            f"gpucost_team_cost_usd{{{_HERE}}}": always(501, 40),
            _BUDGET: samples((500, 20), ("stale", 1)),
        },
        firing={19 * 60: (_OVER_BUDGET,)},
        resolved=(20 * 60,),
    ),
)
"""Samples of this case are a minute apart."""
