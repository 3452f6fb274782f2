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
_LABELS = {"team": "vision", "currency": "USD"}


def _warning(
    description: str, dashboard: str = _TEAM, severity: str = "warning", **labels: str
) -> ExpectedAlert:
    return ExpectedAlert({"severity": severity, **_LABELS, **labels}, description, dashboard)


_WILL = "GpuCostBudgetProjectedToExceed"
_OVER = "GpuCostBudgetExceeded"
_RISE = "GpuCostTeamCostRise"
_BEGUN = int(t.MONTH_BEGUN.value) * _DAY_S

_PER_HOUR = f"gpucost_team_cost_per_hour_usd{{{_HERE}}}"


def _rises(low: object, high: object, steps: int) -> str:
    """Eight days of ``low``, so that last week is known, then ``high`` for so many hours, then ``low``."""
    return samples((low, 8 * _DAY), (high, steps), (low, _DAY))


_RISES_AT = 8 * _DAY_S


def _labels(name: str, kind: str) -> str:
    return f'budget="{name}", subject_kind="{kind}", subject="{name}", period="1970-01"'


def _used(name: str, kind: str) -> str:
    return f"gpucost_budget_used_ratio{{{_labels(name, kind)}}}"


def _expected(team: str, edge: str = "expected") -> str:
    return f'gpucost_budget_expected_ratio{{{_labels(team, "team")}, edge="{edge}"}}'


def _about(name: str, kind: str, words: str, board: str = "gpucost-fleet", **more: str) -> ExpectedAlert:
    labels = {"severity": "warning", "budget": name, "subject_kind": kind, "subject": name}
    about = f"Budget {name} of {kind} {name}: {words}"
    if words.endswith("is spent"):
        about += " in 1970-01. Nothing is refused because of it."
    return ExpectedAlert({**labels, "period": "1970-01", **more}, about, board)


def _of_team(words: str) -> ExpectedAlert:
    return _about("vision", "team", words, _TEAM, team="vision")


_OVER_BUDGET = _of_team("100.2% of it is spent")

CASES: tuple[AlertCase, ...] = (
    AlertCase(
        _WILL,
        "all of it from the first on, told on the fourth; then more than all, whatever the edges of the "
        "interval; then again less",
        {
            _expected("vision"): samples((1.01, 5 * _DAY), (1.2, _DAY), (0.9, 2 * _DAY)),
            _expected("vision", edge="low"): always(0.7, 8 * _DAY),
            _expected("vision", edge="high"): always(1.9, 8 * _DAY),
            _expected("calm"): always(1, 8 * _DAY),
            _expected("calm", edge="high"): always(3, 8 * _DAY),
        },
        silent=(_BEGUN - _STEP, _BEGUN + lasts(_WILL) - _STEP),
        firing={
            _BEGUN + lasts(_WILL): (_of_team("101% of it is expected to be spent in 1970-01."),),
            5 * _DAY_S + _STEP: (_of_team("120% of it is expected to be spent in 1970-01."),),
        },
        resolved=(6 * _DAY_S + _STEP,),
        interval=_STEP,
    ),
    AlertCase(
        _OVER,
        "just the budget, then a little more; in the next month it begins anew. A cluster's goes to the "
        "cluster, a queue's to nobody in particular",
        {
            _used("vision", "team"): samples((1, 10), (1.002, 10), (0.01, 10)),
            _used("prod", "cluster"): samples((0.9, 10), (2, 10), (0, 10)),
            _used("nlp", "queue"): samples((0.9, 10), (3, 10), (0, 10)),
        },
        silent=(9 * _STEP, 10 * _STEP),
        firing={
            11 * _STEP: (
                _OVER_BUDGET,
                _about("prod", "cluster", "200% of it is spent", cluster="prod"),
                _about("nlp", "queue", "300% of it is spent"),
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

_MINUTES = samples((1.002, 20), ("stale", 1), ("_", 2), (1.002, 20), (0.8, 10))
HELD: tuple[AlertCase, ...] = (
    AlertCase(
        _OVER,
        "three scrapes of the service fail: what it last said is held, and what it says then counts",
        {
            "gpucost_ledger_up": samples((1, 20), ("stale", 1), ("_", 2), (1, 30)),
            _used("vision", "team"): _MINUTES,
        },
        firing={minute * 60: (_OVER_BUDGET,) for minute in (19, 20, 21, 22, 23, 42)},
        resolved=(43 * 60,),
    ),
    AlertCase(
        _OVER,
        "the budget is taken away while the service is there: nothing is held",
        {
            "gpucost_ledger_up": always(1, 40),
            _used("vision", "team"): samples((1.002, 20), ("stale", 1)),
        },
        firing={19 * 60: (_OVER_BUDGET,)},
        resolved=(20 * 60,),
    ),
)
"""Samples of this case are a minute apart."""
