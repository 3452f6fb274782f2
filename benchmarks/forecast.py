"""The forecast of a month's end on a public trace, against seasonal naive and the pace so far.

GPU-hours a day of the 11 virtual clusters of Philly with more than 50 a day, from submission on (no
queueing), 108 days; rolling origins. WAPE is the sum of absolute errors of clusters over the sum of what
happened. Seasonal naive says the last seven days again; the pace is what was spent, extended. The interval
is the forecast's own, of nominal 80 %; pinball loss is the mean of its two edges', against the edges of
seasonal naive with the same kind of interval.

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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpucost.reports.month.month_end import COVERAGE, conformal_part, daily_forecast, relative_errors
from tests.support.shared import SHARED

TRACE = SHARED / "traces" / "philly-vc" / "jobs.csv.gz"
FROM = datetime(2017, 9, 5, tzinfo=UTC)
DAYS = 108
LEAST_A_DAY = 50.0
MONTHS = ((10, 31), (11, 30))
Total = Callable[[Sequence[float], int], float]
"""History and a number of days -> what they come to."""


def clusters() -> dict[str, list[float]]:
    """GPU-hours of each day, by virtual cluster."""
    found: dict[str, list[float]] = defaultdict(lambda: [0.0] * DAYS)
    with gzip.open(TRACE, "rt") as rows:
        for row in csv.DictReader(rows):
            submitted = datetime.fromisoformat(row["submit_time"]).replace(tzinfo=UTC)
            at = (submitted - FROM) / timedelta(days=1)
            end, gpus = at + float(row["run_s"]) / 86_400, int(row["num_gpus"])
            while at < min(end, DAYS):
                until = min(end, int(at // 1) + 1)
                if at >= 0:
                    found[row["vc"]][int(at)] += gpus * 24 * (until - at)
                at = until
    return {name: days for name, days in sorted(found.items()) if sum(days) / DAYS > LEAST_A_DAY}


def own(history: Sequence[float], days: int) -> float:
    return daily_forecast(history) * days


def seasonal(history: Sequence[float], days: int) -> float:
    return sum(history[len(history) - 7 + day % 7] for day in range(days))


def wape(pairs: Iterable[tuple[float, float]]) -> float:
    """Of (forecast, actual)."""
    listed = list(pairs)
    return sum(abs(found - actual) for found, actual in listed) / sum(actual for _, actual in listed)


def rolling(all_days: dict[str, list[float]], days: int, total: Total) -> float:
    origins = [DAYS - days * (n + 1) for n in range(9) if DAYS - days * (n + 1) >= 28]
    return wape(
        (total(history[:at], days), sum(history[at : at + days]))
        for at in origins
        for history in all_days.values()
    )


def month_end(all_days: dict[str, list[float]], day: int, total: Total | None) -> float:
    """On ``day`` of a month; without ``total`` by the pace."""
    pairs = []
    for month, length in MONTHS:
        start = (datetime(2017, month, 1, tzinfo=UTC) - FROM).days
        for history in all_days.values():
            spent = sum(history[start : start + day])
            rest = length - day
            left = spent / day * rest if total is None else total(history[: start + day], rest)
            pairs.append((spent + left, sum(history[start : start + length])))
    return wape(pairs)


def seasonal_errors(history: Sequence[float], days: int) -> list[float]:
    """As ``relative_errors``, of seasonal naive."""
    latest = len(history) - days + 1
    found = []
    for origin in range(max(14, latest - 14), latest):
        forecast = seasonal(history[:origin], days)
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
        for history in all_days.values():
            found, actual = total(history[:at], days), sum(history[at : at + days])
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
        figures[f"wape {days} d, seasonal naive"] = rolling(found, days, seasonal)
    for day in (5, 10, 15, 20, 25):
        figures[f"month end, day {day}"] = month_end(found, day, own)
        figures[f"month end, day {day}, pace"] = month_end(found, day, None)
    for days in (7, 14, 21):
        coverage, loss, count = intervals(found, days, own, relative_errors)
        _, naive, _ = intervals(found, days, seasonal, seasonal_errors)
        figures |= {f"coverage {days} d": coverage, f"forecasts {days} d": count}
        figures[f"pinball {days} d / seasonal naive"] = loss / naive
    limits = {"wape 7 d": 0.49, "month end, day 10": 0.32, "month end, day 20": 0.13}
    holds = {name: figures[name] <= limit for name, limit in limits.items()}
    holds |= {
        f"naive {d} d": figures[f"wape {d} d"] <= figures[f"wape {d} d, seasonal naive"] for d in (7, 14, 28)
    }
    for days in (7, 14, 21):
        holds[f"coverage {days} d"] = 0.75 <= figures[f"coverage {days} d"] <= 0.88
        holds[f"pinball {days} d"] = figures[f"pinball {days} d / seasonal naive"] < 1
    for name, value in figures.items():
        print(f"{name:32} {value:.3f}")
    ratios = {"month end, day 10 / pace": figures["month end, day 10"] / figures["month end, day 10, pace"]}
    result = {"name": "forecast", "figures": figures, "ratios": ratios, "limits": limits}
    print([name for name, held in holds.items() if not held] or "all hold")
    print(json.dumps(result | {"holds": all(holds.values())}))


if __name__ == "__main__":
    main()
