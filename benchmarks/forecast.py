"""The forecast of a month's end on a public trace, against seasonal naive and the pace so far.

GPU-hours a day of the 11 virtual clusters of Philly with more than 50 a day, from submission on (no
queueing), 108 days; rolling origins. WAPE is the sum of absolute errors of clusters over the sum of what
happened. Seasonal naive says the last seven days again; the pace is what was spent, extended. The interval
is the forecast's own, of nominal 80 %; pinball loss is the mean of its two edges', against the edges of
seasonal naive with the same kind of interval. Both are told without and with the jobs that run at the origin,
whose remaining time is learnt from those that had ended by then.

    python benchmarks/forecast.py
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpucost.advisor.wait.run_times import PastRun, RunTimes
from gpucost.domain.money import NANO
from gpucost.domain.time import DAY_MS, HOUR_MS
from gpucost.reports.month.month_end import (
    COVERAGE,
    conformal_part,
    cost_ahead,
    daily_forecast,
    relative_errors,
)
from gpucost.reports.month.work_ahead import AheadJob, daily_cost, times_left
from tests.support.shared import SHARED

TRACE = SHARED / "traces" / "philly-vc" / "jobs.csv.gz"
FROM = datetime(2017, 9, 5, tzinfo=UTC)
DAYS = 108
LEAST_A_DAY = 50.0
MONTHS = ((10, 31), (11, 30))
Total = Callable[[str, Sequence[float], int], float]
"""A cluster, its history and a number of days -> what they come to."""


class TraceJob(NamedTuple):
    """A job of a virtual cluster; instants are days since ``FROM``."""

    cluster: str
    start: float
    end: float
    gpus: int


@cache
def jobs() -> tuple[TraceJob, ...]:
    """In the order of their end."""
    found = []
    with gzip.open(TRACE, "rt") as rows:
        for row in csv.DictReader(rows):
            submitted = datetime.fromisoformat(row["submit_time"]).replace(tzinfo=UTC)
            at = (submitted - FROM) / timedelta(days=1)
            end = at + float(row["run_s"]) / 86_400
            found.append(TraceJob(row["vc"], at, end, int(row["num_gpus"])))
    return tuple(sorted(found, key=lambda job: job.end))


def clusters() -> dict[str, list[float]]:
    """GPU-hours of each day, by virtual cluster."""
    found: dict[str, list[float]] = defaultdict(lambda: [0.0] * DAYS)
    for job in jobs():
        at = job.start
        while at < min(job.end, DAYS):
            until = min(job.end, int(at // 1) + 1)
            if at >= 0:
                found[job.cluster][int(at)] += job.gpus * 24 * (until - at)
            at = until
    return {name: days for name, days in sorted(found.items()) if sum(days) / DAYS > LEAST_A_DAY}


def own(_name: str, history: Sequence[float], days: int) -> float:
    return daily_forecast(history) * days


@cache
def running(at: int) -> dict[str, list[AheadJob]]:
    """The jobs that run at an origin, by virtual cluster, at a unit for each GPU-hour."""
    ended = (each for each in jobs() if each.start >= 0 and each.end <= at)
    learnt = RunTimes(
        PastRun(each.cluster, "", each.gpus, round((each.end - each.start) * DAY_MS)) for each in ended
    )
    found: dict[str, list[AheadJob]] = defaultdict(list)
    for each in jobs():
        if each.start < at < each.end:
            left = times_left(learnt.like(each.cluster, "", each.gpus), round((at - each.start) * DAY_MS))
            unit = Fraction(each.gpus * NANO, HOUR_MS)
            found[each.cluster].append(AheadJob(each.cluster, "", "", "", at * DAY_MS, left, unit))
    return found


def with_running(name: str, history: Sequence[float], days: int) -> float:
    at = len(history)
    ahead = daily_cost(running(at)[name], at * DAY_MS, days)
    return cost_ahead(history, days, [nano / NANO for nano in ahead])


def seasonal(_name: str, history: Sequence[float], days: int) -> float:
    return sum(history[len(history) - 7 + day % 7] for day in range(days))


def wape(pairs: Iterable[tuple[float, float]]) -> float:
    """Of (forecast, actual)."""
    listed = list(pairs)
    return sum(abs(found - actual) for found, actual in listed) / sum(actual for _, actual in listed)


def rolling(all_days: dict[str, list[float]], days: int, total: Total) -> float:
    origins = [DAYS - days * (n + 1) for n in range(9) if DAYS - days * (n + 1) >= 28]
    return wape(
        (total(name, history[:at], days), sum(history[at : at + days]))
        for at in origins
        for name, history in all_days.items()
    )


def month_end(all_days: dict[str, list[float]], day: int, total: Total | None) -> float:
    """On ``day`` of a month; without ``total`` by the pace."""
    pairs = []
    for month, length in MONTHS:
        start = (datetime(2017, month, 1, tzinfo=UTC) - FROM).days
        for name, history in all_days.items():
            spent = sum(history[start : start + day])
            rest = length - day
            left = spent / day * rest if total is None else total(name, history[: start + day], rest)
            pairs.append((spent + left, sum(history[start : start + length])))
    return wape(pairs)


def seasonal_errors(history: Sequence[float], days: int) -> list[float]:
    """As ``relative_errors``, of seasonal naive."""
    latest = len(history) - days + 1
    found = []
    for origin in range(max(14, latest - 14), latest):
        forecast = seasonal("", history[:origin], days)
        if forecast > 0:
            found.append(abs(sum(history[origin : origin + days]) - forecast) / forecast)
    return found


def intervals(
    all_days: dict[str, list[float]],
    days: int,
    total: Total,
    errors_of: Callable[[Sequence[float], int], list[float]],
) -> tuple[float, float, int]:
    """Coverage, pinball loss of both edges, and the number of forecasts."""
    kept, loss, count = 0, 0.0, 0
    edge = float((1 - COVERAGE) / 2)
    for at in range(35, DAYS - days + 1, 7):
        errors = [error for history in all_days.values() for error in errors_of(history[:at], days)]
        part = conformal_part(errors)
        if part is None:
            continue
        for name, history in all_days.items():
            found, actual = total(name, history[:at], days), sum(history[at : at + days])
            low, high = found * max(0.0, 1 - part), found * (1 + part)
            kept, count = kept + (low <= actual <= high), count + 1
            for level, quantile in ((edge, low), (1 - edge, high)):
                loss += max(level * (actual - quantile), (level - 1) * (actual - quantile))
    return kept / count, loss / count, count


def main() -> None:
    found = clusters()
    figures: dict[str, float] = {"clusters": len(found)}
    for days in (7, 14, 28):
        figures[f"wape {days} d"] = rolling(found, days, own)
        figures[f"wape {days} d, with jobs"] = rolling(found, days, with_running)
        figures[f"wape {days} d, seasonal naive"] = rolling(found, days, seasonal)
    for day in (5, 10, 15, 20, 25):
        figures[f"month end, day {day}"] = month_end(found, day, own)
        figures[f"month end, day {day}, with jobs"] = month_end(found, day, with_running)
        figures[f"month end, day {day}, pace"] = month_end(found, day, None)
    for days in (7, 14, 21):
        coverage, loss, count = intervals(found, days, own, relative_errors)
        _, naive, _ = intervals(found, days, seasonal, seasonal_errors)
        figures[f"coverage {days} d, with jobs"], loss_with, _ = intervals(
            found, days, with_running, relative_errors
        )
        figures[f"pinball {days} d, with jobs / seasonal naive"] = loss_with / naive
        figures |= {f"coverage {days} d": coverage, f"forecasts {days} d": count}
        figures[f"pinball {days} d / seasonal naive"] = loss / naive
    limits = {"wape 7 d": 0.49, "month end, day 10": 0.32, "month end, day 20": 0.13}
    holds: dict[str, bool] = {}
    for known in ("", ", with jobs"):
        holds |= {f"{name}{known}": figures[f"{name}{known}"] <= limit for name, limit in limits.items()}
        for days in (7, 14, 28):
            naive = figures[f"wape {days} d, seasonal naive"]
            holds[f"naive {days} d{known}"] = figures[f"wape {days} d{known}"] <= naive
        for days in (7, 14, 21):
            holds[f"coverage {days} d{known}"] = 0.75 <= figures[f"coverage {days} d{known}"] <= 0.88
            holds[f"pinball {days} d{known}"] = figures[f"pinball {days} d{known} / seasonal naive"] < 1
    for name, value in figures.items():
        print(f"{name:44} {value:.3f}")
    ratios = {"month end, day 10 / pace": figures["month end, day 10"] / figures["month end, day 10, pace"]}
    result = {"name": "forecast", "figures": figures, "ratios": ratios, "limits": limits}
    print([name for name, held in holds.items() if not held] or "all hold")
    print(json.dumps(result | {"holds": all(holds.values())}))


if __name__ == "__main__":
    main()
