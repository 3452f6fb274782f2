"""Incidents: whether the right cause is named of what was injected, and how often a real trace has one.

Injected are, into the last week of a team of ten patterns of jobs (Poisson arrivals, run times lognormal):
prices 30 % up, one stuck job of 8 GPUs, twice as many jobs, half of the telemetry missing, and jobs that
moved to a model of twice the price. Missing data must be named, and be no excess. Untouched are the jobs of
Philly's virtual clusters (108 days, one price, patterns by number of GPUs).

    python benchmarks/incidents.py
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpucost.domain.money import NANO
from gpucost.domain.time import DAY_MS, HOUR_MS
from gpucost.reports.base.values import MEASURES
from gpucost.reports.month.change_causes import CauseKind, SpanLines, SpanTime, explain, largest_first
from gpucost.reports.month.cost_incidents import (
    BASE_MS,
    WEEK_MS,
    CostIncident,
    IncidentRule,
    IncidentSign,
    incidents,
    sign_of,
    signs_of,
)
from tests.support.shared import SHARED

TRACE = SHARED / "traces" / "philly-vc" / "jobs.csv.gz"
FROM = datetime(2017, 9, 5, tzinfo=UTC)
DAYS = 108
PRICE = 2 * NANO
RULE = IncidentRule()
CAUSES: dict[str, frozenset[CauseKind]] = {
    "price": frozenset({CauseKind.PRICE}),
    "stuck": frozenset({CauseKind.LENGTH, CauseKind.NEW_PATTERN}),
    "doubled": frozenset({CauseKind.RUNS}),
    "missing": frozenset({CauseKind.MISSING_DATA}),
    "model": frozenset({CauseKind.MODELS}),
}
WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa")


def lines(columns: dict[str, object]) -> pd.DataFrame:
    """A frame as ``Ledger.aggregate`` gives it, of held time."""
    found = pd.DataFrame(columns)
    for name in MEASURES:
        if name not in found:
            found[name] = pd.Series([0 if name == "unpriced_ms" else pd.NA] * len(found), dtype="Int64")
    return found.astype({"nano": "Int64"})


def jobs(random: np.random.Generator, weeks: int, start_ms: int) -> list[dict[str, object]]:
    """Jobs of a team: each of ten patterns has its width, its mean run time and its rate."""
    shapes = np.random.default_rng(7)
    found = []
    for word in WORDS:
        gpus, rate, hours = int(shapes.choice([1, 2, 4, 8])), shapes.uniform(20, 60), shapes.uniform(2, 8)
        for n in range(int(random.poisson(rate * weeks))):
            run_ms = int(random.lognormal(np.log(hours), 0.4) * HOUR_MS)
            begun = start_ms + int(random.uniform(0, weeks * WEEK_MS - run_ms))
            found.append(
                {"job": f"{word}-{start_ms}-{n}", "gpus": gpus, "begun": begun, "ended": begun + run_ms}
            )
    return found


def frame(
    found: list[dict[str, object]], price: int = PRICE, model: str = "H100", part: float = 1
) -> pd.DataFrame:
    rows = []
    for each in found:
        begun, ended = int(str(each["begun"])), int(str(each["ended"]))
        board_ms = round((ended - begun) * int(str(each["gpus"])) * part)
        rows.append(
            {
                "team": "team", "cluster": "c", "model": model, "bucket": "held", "namespace": "team",
                "job": each["job"], "job_uid": each["job"], "first_ms": begun, "last_ms": ended,
                "board_ms": board_ms, "nano": board_ms * price // HOUR_MS,
            }
        )  # fmt: skip
    return lines({name: [row[name] for row in rows] for name in rows[0]})


def injected(kind: str, seed: int) -> tuple[bool, bool]:
    """Whether the right cause is named, and whether there is an excess exactly where there should be."""
    random = np.random.default_rng(seed)
    base = jobs(random, 4, 0)
    now = jobs(random, 1, BASE_MS)
    price, model, part = PRICE, "H100", 1.0
    if kind == "doubled":
        again = jobs(random, 1, BASE_MS)
        now += [{**each, "job": f"{each['job']}-2"} for each in again]
    elif kind == "stuck":
        begun = BASE_MS + int(random.uniform(0, HOUR_MS))
        now.append({"job": "beta-9", "gpus": 8, "begun": begun, "ended": BASE_MS + WEEK_MS})
    elif kind == "price":
        price = PRICE * 13 // 10
    elif kind == "missing":
        part = 0.5
    elif kind == "model":
        price, model = 2 * PRICE, "B200"
    times = [
        SpanTime(BASE_MS, {"c": BASE_MS}, {"c": BASE_MS}),
        SpanTime(WEEK_MS, {"c": WEEK_MS}, {"c": round(WEEK_MS * part)}),
    ]
    found = explain(SpanLines(frame(now, price, model, part), times[1]), SpanLines(frame(base), times[0]))[
        "team"
    ]
    rule = IncidentRule(floor_nano=100 * NANO, least_part=RULE.least_part / 5)
    sign = sign_of(BASE_MS + WEEK_MS, found, 1, rule)
    if kind == "missing":
        rest = [each for each in largest_first(found) if each.kind != CauseKind.SPAN]
        return CauseKind(rest[0].kind) in CAUSES[kind], not sign.excess_nano > -rest[0].nano
    return sign.cause is not None and CauseKind(sign.cause.kind) in CAUSES[kind], sign.excess_nano > 0


def trace() -> pd.DataFrame:
    """Held lines of each job and day."""
    rows: dict[str, list[object]] = {
        name: [] for name in ("team", "job", "day", "first_ms", "last_ms", "board_ms")
    }
    words = {1: "one", 2: "two", 4: "four", 8: "eight"}
    with gzip.open(TRACE, "rt") as file:
        for row in csv.DictReader(file):
            begun = datetime.fromisoformat(row["submit_time"]).replace(tzinfo=UTC)
            at = int((begun - FROM) / timedelta(milliseconds=1))
            end, gpus = min(at + round(float(row["run_s"]) * 1000), DAYS * DAY_MS), int(row["num_gpus"])
            at = max(at, 0)
            while at < end:
                until = min(end, (at // DAY_MS + 1) * DAY_MS)
                values = (row["vc"], f"{words.get(gpus, 'many')}-{row['job']}", at // DAY_MS, at, until)
                for name, value in zip(rows, (*values, gpus * (until - at)), strict=True):
                    rows[name].append(value)
                at = until
    found = pd.DataFrame(rows)
    found["nano"] = found["board_ms"].astype("int64") * PRICE // HOUR_MS
    found["job_uid"], found["namespace"] = found["job"], found["team"]
    found["cluster"], found["model"], found["bucket"] = "c", "P100", "held"
    return lines({name: found[name] for name in found})


def untouched() -> tuple[list[CostIncident], int]:
    """The incidents of the trace, and how many teams and months it has."""
    whole = trace()
    signs: dict[str, list[IncidentSign]] = {team: [] for team in sorted(set(whole["team"]))}
    for day in range(35 + RULE.days, DAYS + 1):
        week, base = (
            whole[(whole["first_ms"] >= each.start_ms) & (whole["first_ms"] < each.end_ms)]
            for each in RULE.spans(day * DAY_MS)
        )
        found = signs_of(
            day * DAY_MS, SpanLines(week, SpanTime(WEEK_MS)), SpanLines(base, SpanTime(BASE_MS)), RULE
        )
        for team, own in signs.items():
            own.append(found.get(team, IncidentSign(day * DAY_MS, 0, 0, None)))
    every = [each for team, own in signs.items() for each in incidents(team, own, RULE)]
    return every, len(signs)


def month_of(began_ms: int) -> str:
    return (FROM + timedelta(milliseconds=began_ms)).strftime("%Y-%m")


def main() -> None:
    right, told = Counter[str](), Counter[str]()
    each_kind = 20
    for kind in CAUSES:
        for seed in range(each_kind):
            named, is_right = injected(kind, seed)
            right[kind] += named
            told[kind] += is_right
    found, teams = untouched()
    by_month = Counter((each.team, month_of(each.began_ms)) for each in found)
    figures = {f"right cause, {kind}, of {each_kind}": right[kind] for kind in CAUSES}
    figures |= {"right causes of 100": sum(right.values()), "teams": teams, "incidents": len(found)}
    figures["most of a team and month"] = max(by_month.values(), default=0)
    for name, value in figures.items():
        print(f"{name:32} {value}")
    limits = {"right causes of 100": 95, "most of a team and month": 1}
    holds = figures["right causes of 100"] >= 95 and figures["most of a team and month"] <= 1
    result = {"name": "incidents", "figures": figures, "ratios": {}, "limits": limits, "holds": holds}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
