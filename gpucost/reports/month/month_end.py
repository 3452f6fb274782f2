"""What a month will have cost at its end: what happened, and a forecast of the days that are left.

A day that is left is forecast as the mean of two: simple exponential smoothing of the daily cost (its factor
is the one of a grid that would have been best so far), and the mean of the last 28 days. On a public trace of
15 clusters that is closer to the truth than either, than the pace so far, and than larger models
(benchmarks/forecast.py). Where jobs that run or wait are expected to cost more than that on a day
(``gpucost.reports.month.work_ahead``), half of what is above it is added: such jobs end, and what a team
runs besides goes down meanwhile. The interval is split conformal: the errors that the same forecast would
have made for as many days, at the latest days of the history that have as many after them, scaled by its
level, of all teams together; it holds ``COVERAGE`` of them. Floats in a fixed order, rounded to nano-units:
the same history, the same forecast.

Teams with a short history, or days that are not known, have no forecast, and ``reason`` says why.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from gpucost.domain.time import Month

LEAST_DAYS = 14
"""Of history; with less, a forecast says nothing."""
MEAN_DAYS = 28
COVERAGE = Fraction(8, 10)
_LEAST_ERRORS = 5
_GONE = f"held nothing for {LEAST_DAYS} days: no more is expected"
_ORIGINS = 14
"""Latest days of a history at whose end forecasts are tried: older ones were made of another load."""
_FACTORS = tuple(each / 20 for each in range(1, 20))


@dataclass(frozen=True, slots=True)
class MonthEnd:
    """The cost of a team at the end of a month, in nano-units: expected, and the interval that ``COVERAGE``
    of past forecasts kept. ``days_left`` are those that were forecast. Without a forecast all three are None,
    and ``reason`` says why; it also says why no more is expected of who is gone."""

    team: str
    expected_nano: int | None
    low_nano: int | None
    high_nano: int | None
    days_left: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MonthForecast:
    """The end of a month that goes on, of what all teams in scope hold together, and of each, by name; known
    up to ``as_of``, a midnight in UTC. ``coverage`` is that of the intervals. ``unallocated`` is of time that
    nobody held, for who sees every team; so is ``committed_nano``, what owned and committed GPUs cost in the
    month, whoever holds them: known, at the capacity of the last day. ``running_jobs`` and ``waiting_jobs``
    were counted with what they are expected to cost yet; ``not_counted`` says which were not, and why."""

    month: Month
    currency: str
    as_of: str
    days_left: int
    coverage: Fraction
    total: MonthEnd
    teams: tuple[MonthEnd, ...]
    unallocated: MonthEnd | None = None
    committed_nano: int | None = None
    running_jobs: int = 0
    waiting_jobs: int = 0
    not_counted: str = ""


@dataclass(frozen=True, slots=True)
class ForecastOrigin:
    """How good forecasts of a month's end were that were made so many days before it, of all teams and months
    of which the ledger knows every day: how many, the part that their intervals kept, the sum of errors over
    the sum of costs (``wape``), and the error of a day over that of the same day a week before (``mase``)."""

    days_left: int
    forecasts: int
    coverage: Fraction
    wape: Fraction | None
    mase: Fraction | None


@dataclass(frozen=True, slots=True)
class ForecastScore:
    """How past forecasts of month's ends did: ``kept`` are those that ``gpucost serve`` said day by day, with
    the jobs that ran and waited then. ``origins`` are made again from the ledger, as if it had been asked:
    of months before it was, too, and of the days alone."""

    months: tuple[Month, ...]
    currency: str
    nominal: Fraction
    origins: tuple[ForecastOrigin, ...]
    kept: tuple[ForecastOrigin, ...] = ()


SCORED_DAYS = (5, 10, 15, 20, 25)
"""Days of a month at whose end its forecasts are scored."""
_WEEK = 7


def score_kept(
    kept: Iterable[tuple[MonthEnd, int]], costs: Mapping[str, Sequence[int]], first: int, days: int
) -> dict[int, list[tuple[MonthEnd, int, float]]]:
    """As ``score_month``, of forecasts as they were said, each with the number of days that were known."""
    found: dict[int, list[tuple[MonthEnd, int, float]]] = {}
    for end, day in kept:
        own, until = costs.get(end.team, [0] * (first + days)), first + day
        if day not in SCORED_DAYS or day >= days or end.expected_nano is None:
            continue
        a_day = (end.expected_nano - sum(own[first:until])) / (days - day)
        error = scaled_error(own[:until], own[until : first + days], a_day)
        found.setdefault(days - day, []).append((end, sum(own[first : first + days]), error))
    return found


def score_month(
    costs: Mapping[str, Sequence[int]], first: int, days: int
) -> dict[int, list[tuple[MonthEnd, int, float]]]:
    """Forecasts of one month by days left: of each team the forecast, what it cost in the end, and its error
    of a day over that of seasonal naive. ``costs`` are the nano-units of each day of every team, up to the
    month's last; ``first`` is the index of its first day."""
    found: dict[int, list[tuple[MonthEnd, int, float]]] = {}
    for day in SCORED_DAYS:
        if day >= days:
            continue
        until, left = first + day, days - day
        known = {team: _from_first(each[:until]) for team, each in costs.items() if any(each[:until])}
        spent = {team: sum(costs[team][first:until]) for team in known}
        ends = month_ends(known, spent, left)
        found[left] = [
            (
                end,
                sum(costs[team][first : first + days]),
                scaled_error(
                    known[team],
                    costs[team][until : until + left],
                    daily_forecast([float(day) for day in known[team]]),
                ),
            )
            for team, end in ends.items()
            if end.expected_nano is not None
        ]
    return found


def _from_first(days: Sequence[int]) -> Sequence[int]:
    begun = next((at for at, nano in enumerate(days) if nano), 0)
    return days[begun:]


def scaled_error(history: Sequence[int], after: Sequence[int], forecast: float) -> float:
    """Mean absolute error of ``forecast``, of each of the days after, over that of a week before in the
    history; 0 without one."""
    history = _from_first(history)
    naive = [abs(history[at] - history[at - _WEEK]) for at in range(_WEEK, len(history))]
    scale = sum(naive) / len(naive) if naive else 0.0
    error = sum(abs(day - forecast) for day in after) / len(after)
    return error / scale if scale else 0.0


def scored(
    found: Mapping[int, Sequence[tuple[MonthEnd, int, float]]],
) -> tuple[ForecastOrigin, ...]:
    """By days left, the most first."""
    origins = []
    for left, rows in sorted(found.items(), reverse=True):
        if not rows:
            continue
        paid = sum(actual for _, actual, _ in rows)
        off = sum(abs((end.expected_nano or 0) - actual) for end, actual, _ in rows)
        kept = sum((end.low_nano or 0) <= actual <= (end.high_nano or 0) for end, actual, _ in rows)
        mase = Fraction(sum(each for _, _, each in rows) / len(rows)).limit_denominator(1_000_000)
        wape = Fraction(off, paid) if paid else None
        origins.append(ForecastOrigin(left, len(rows), Fraction(kept, len(rows)), wape, mase))
    return tuple(origins)


def smoothed(history: Sequence[float]) -> float:
    """The level of simple exponential smoothing, by the factor with the least squared error one day ahead.
    ``history`` has a day at least."""
    best, level = math.inf, history[0]
    for factor in _FACTORS:
        found, error = history[0], 0.0
        for value in history[1:]:
            error += (value - found) ** 2
            found += factor * (value - found)
        if error < best:
            best, level = error, found
    return level


def is_gone(history: Sequence[float]) -> bool:
    """Whether the latest days, as many as a forecast needs, cost nothing at all."""
    return len(history) >= LEAST_DAYS and not any(history[-LEAST_DAYS:])


def daily_forecast(history: Sequence[float]) -> float:
    """What a day after ``history`` costs. Nothing where the last ``LEAST_DAYS`` cost nothing: who left in the
    month before is not expected back, and half the mean of that month would be a cost of nobody."""
    if is_gone(history):
        return 0.0
    recent = history[-MEAN_DAYS:]
    return (smoothed(history) + sum(recent) / len(recent)) / 2


def cost_ahead(history: Sequence[float], days: int, ahead: Sequence[float] = ()) -> float:
    """What ``days`` after ``history`` cost together; ``ahead`` is what jobs that run or wait are expected to
    cost on each."""
    level = daily_forecast(history)
    return level * days + sum(max(0.0, cost - level) for cost in ahead[:days]) / 2


def relative_errors(history: Sequence[float], days: int) -> list[float]:
    """Of forecasts of ``days`` together, made at the end of each of the latest days that have as many after
    them: how far they were off, as a part of what was forecast."""
    found, latest = [], len(history) - days + 1
    for origin in range(max(LEAST_DAYS, latest - _ORIGINS), latest):
        forecast = daily_forecast(history[:origin]) * days
        if forecast > 0:
            found.append(abs(sum(history[origin : origin + days]) - forecast) / forecast)
    return found


def conformal_part(errors: Sequence[float]) -> float | None:
    """The part of a forecast that is added and taken off; None where there are too few ``errors``."""
    if len(errors) < _LEAST_ERRORS:
        return None
    rank = math.ceil((len(errors) + 1) * COVERAGE)
    return sorted(errors)[min(rank, len(errors)) - 1]


def month_ends(
    history: Mapping[str, Sequence[int | None]],
    spent: Mapping[str, int],
    days_left: int,
    most_a_day: int | None = None,
    held: Mapping[str, int] | None = None,
    *,
    ahead: Mapping[str, Sequence[int]] | None = None,
    of_shorter: bool = False,
) -> dict[str, MonthEnd]:
    """Of each team of ``history`` the cost at the month's end, by name.

    ``history`` are nano-units of each whole day up to now, the last one last, from the team's first day on;
    None is a day that is not known. ``spent`` is what it cost in the month so far; ``most_a_day`` what all
    GPUs cost in a day, more than which no team can use. ``held`` is what is known to be held by now, with the
    day that goes on: no end of the month is less. ``ahead`` is what jobs that run or wait are expected to
    cost on each of the days that are left.
    """
    known = {team: [float(day) for day in days if day is not None] for team, days in history.items()}
    horizon, errors = days_left, _errors(history, known, days_left)
    while of_shorter and len(errors) < _LEAST_ERRORS and horizon > _WEEK:
        horizon = max(_WEEK, horizon // 2)
        errors = _errors(history, known, horizon)
    part = conformal_part(errors)
    return {
        team: _month_end(
            team,
            days,
            spent.get(team, 0),
            days_left,
            part,
            most_a_day,
            (held or {}).get(team, 0),
            (ahead or {}).get(team, ()),
        )
        for team, days in sorted(history.items())
    }


def _errors(
    history: Mapping[str, Sequence[int | None]], known: Mapping[str, Sequence[float]], days: int
) -> list[float]:
    """Of all teams whose history is known whole."""
    return [
        error
        for team, found in sorted(history.items())
        if None not in found
        for error in relative_errors(known[team], days)
    ]


def _month_end(
    team: str,
    days: Sequence[int | None],
    spent: int,
    days_left: int,
    part: float | None,
    most_a_day: int | None,
    held: int,
    ahead: Sequence[int],
) -> MonthEnd:
    if not days_left:
        return MonthEnd(team, spent, spent, spent, 0)
    whole = [float(day) for day in days if day is not None]
    if len(whole) < len(days):
        lacks = f"{len(days) - len(whole)} of the last {len(days)} days are not known whole, or lack prices"
        return MonthEnd(team, None, None, None, days_left, lacks)
    if len(whole) < LEAST_DAYS:
        return MonthEnd(team, None, None, None, days_left, f"{len(whole)} of {LEAST_DAYS} days of history")
    if part is None and not is_gone(whole):
        lacks = f"fewer than {_LEAST_ERRORS} past forecasts of {days_left} days to say how far it may be off"
        return MonthEnd(team, None, None, None, days_left, lacks)
    part = part or 0.0
    rest = cost_ahead(whole, days_left, [float(nano) for nano in ahead])
    most = math.inf if most_a_day is None else float(most_a_day) * days_left
    ends = (min(rest * each, most) for each in (max(0.0, 1 - part), 1.0, 1 + part))
    low, expected, high = (max(held, spent + round(each)) for each in ends)
    return MonthEnd(
        team,
        expected,
        low,
        high,
        days_left,
        _GONE if is_gone(whole) and held <= spent and not any(ahead) else "",
    )
