"""Cells, policies and quota trees for tests of charges, by hand and at random."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import pairwise

from gpucost.charges.capacity_cells import CapacityCell, CellRow
from gpucost.charges.policy_file import PolicyBook
from gpucost.domain.buckets import Bucket
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Window, parse_instant

START_MS = parse_instant("2026-10-01T00:00:00Z")
HOUR = Window(START_MS, START_MS + HOUR_MS)
CLUSTER, MODEL = "prod", "H100"
TWO_DOLLARS = 2_000_000_000


def book(text: str, weights: dict[str, Fraction] | None = None) -> PolicyBook:
    return PolicyBook.parse(f"version: 1\nname: test\n{text}", "policy.yaml", weights)


def row(
    bucket: Bucket,
    gpus: int | Fraction,
    first_min: int = 0,
    last_min: int = 60,
    *,
    team: str = "",
    queue: str = "",
    job: str = "",
    capacity_type: str = "on-demand",
    price: int = TWO_DOLLARS,
    window: Window = HOUR,
) -> CellRow:
    """GPUs from one minute to another of ``window``, at ``price`` nano-units per GPU-hour."""
    first, last = window.start_ms + first_min * MINUTE_MS, window.start_ms + last_min * MINUTE_MS
    board_ms = int(gpus * (last - first))
    nano = board_ms * price // HOUR_MS
    uid = f"{job}-uid" if job else ""
    return CellRow(bucket, team, queue, team, job, uid, capacity_type, first, last, board_ms, nano)


def held(team: str, gpus: int | Fraction, first_min: int = 0, last_min: int = 60, **more: str) -> CellRow:
    names = {"queue": "", "job": f"{team}-job", "capacity_type": "on-demand"} | more
    return row(Bucket.HELD, gpus, first_min, last_min, team=team, **names)


def free(gpus: int | Fraction, first_min: int = 0, last_min: int = 60) -> CellRow:
    return row(Bucket.UNALLOCATED, gpus, first_min, last_min)


def cell(*rows: CellRow, window: Window = HOUR) -> CapacityCell:
    return CapacityCell.of(CLUSTER, MODEL, window, rows)


TEAMS = ("ads", "bio", "chem", "dev", "edu", "fin")


def random_cells(rng: random.Random, hours: int) -> list[CapacityCell]:
    """Hours of one to three pools: jobs that come and go at any millisecond, shares of GPUs, odd prices, time
    without a price, unavailable and unknown time."""
    found = []
    for cluster in ("prod", "lab")[: rng.randint(1, 2)]:
        for model in ("H100", "A100-80GB")[: rng.randint(1, 2)]:
            for n in range(hours):
                window = Window(START_MS + n * HOUR_MS, START_MS + (n + 1) * HOUR_MS)
                rows = [_random_row(rng, window) for _ in range(rng.randint(0, 9))]
                found.append(CapacityCell.of(cluster, model, window, rows))
    return found


def _random_row(rng: random.Random, window: Window) -> CellRow:
    bucket = rng.choice([Bucket.HELD] * 4 + [Bucket.UNALLOCATED] * 3 + [Bucket.UNAVAILABLE, Bucket.UNKNOWN])
    first, last = sorted(rng.sample(range(window.start_ms, window.end_ms + 1), 2))
    if rng.random() < 0.6:
        first, last = window.start_ms, window.end_ms
    board_ms = (last - first) * rng.randint(0, 56) // rng.choice((1, 1, 2, 7))
    unpriced = board_ms if rng.random() < 0.1 else 0
    nano = 0 if unpriced else board_ms * rng.randint(1, 7_000_000_001) // HOUR_MS
    of_a_team = bucket is Bucket.HELD
    team = rng.choice(TEAMS) if of_a_team else ""
    queue = rng.choice(("", f"{team}-q", "shared-q")) if of_a_team else ""
    job = f"job{rng.randint(0, 3)}" if of_a_team else ""
    kind = rng.choice(("spot", "on-demand", ""))
    return CellRow(bucket, team, queue, team, job, job, kind, first, last, board_ms, nano, unpriced)


def random_book(rng: random.Random, hours: int) -> str:
    """Policies that change inside hours, quotas in a tree of cohorts, limits, rates of exchange: always
    a file that is accepted."""
    edges = sorted(rng.sample(range(1, hours * HOUR_MS), 2))
    at = [_iso(START_MS + edge) for edge in edges]
    spans = [f"valid_to: {at[0]}", f"valid_from: {at[0]}, valid_to: {at[1]}", f"valid_from: {at[1]}"]
    lines = ["policies:"]
    lines += [f"  - {{{span}, {_random_policy(rng)}}}" for span in spans]
    lines += [f"  - {{clusters: [lab], {_random_policy(rng)}}}"] if rng.random() < 0.5 else []
    lines += ["quotas:", *_random_quotas(rng, at)]
    lines += ["cohorts:", "  - {name: left, parent: root}"]
    lines += [f"  - {{name: right, parent: root, lending_limit: {rng.randint(0, 9)}}}"]
    if rng.random() < 0.5:
        lines += ["limits:", "  - {team: ads, floor: 1}", "  - {team: bio, floor: 0, cap: 3}"]
    if rng.random() < 0.5:
        cut = _iso(START_MS + rng.randint(1, hours * HOUR_MS - 1))
        lines += ["currency: EUR", "rates:", f"  - {{from: USD, rate: 0.917, valid_to: {cut}}}"]
        lines += [f"  - {{from: USD, rate: 0.923456789, valid_from: {cut}}}"]
    return "\n".join(lines)


def _random_policy(rng: random.Random) -> str:
    base = rng.choice(("use", "nominal", "larger", "two_part"))
    keys = [f"base: {base}"]
    if base == "two_part":
        keys.append(f"fixed_part: {rng.choice(('0', '0.3', '0.123456789', '1'))}")
    if base == "use":
        keys.append(f"idle_of_quota: {rng.choice(('owner', 'platform'))}")
    if rng.random() < 0.5:
        keys.append(f"borrowed_factor: {rng.choice(('0', '0.5', '1.5', '3.333333333'))}")
    for key in ("idle_of_nobody", "unavailable", "unknown"):
        keys.append(f"{key}: {rng.choice(('platform', 'by_quota', 'by_use', 'equally'))}")
    if rng.random() < 0.3:
        keys += ["overhead_teams: [dev]", f"overhead: {rng.choice(('platform', 'by_use', 'equally'))}"]
    if rng.random() < 0.5:
        more = rng.choice(("", ", {queue: [ads-q, shared-q], percent: 50}"))
        keys.append(f"discounts: [{{capacity_type: spot, percent: 33.3}}{more}]")
    if rng.random() < 0.3:
        keys.append("spread_over: month")
    if rng.random() < 0.5:
        keys.append("mark_up: 7.5")
    return ", ".join([*keys, "access: [ads, bio, chem]"])


def _random_quotas(rng: random.Random, at: list[str]) -> list[str]:
    lines = []
    for model in ("H100", "A100-80GB"):
        for team in TEAMS[: rng.randint(1, 6)]:
            gpus = rng.choice(("0", "1", "2.5", "8", "16", "40", "0.142857142"))
            more = f", lending_limit: {rng.randint(0, 8)}" if rng.random() < 0.4 else ""
            more += (
                f", cohort: {rng.choice(('left', 'right', 'root', 'alone'))}" if rng.random() < 0.8 else ""
            )
            more += f", queue: {team}-q" if rng.random() < 0.5 else ""
            first = f"  - {{team: {team}, model: {model}, gpus: {gpus}{more}"
            if rng.random() < 0.4:
                lines += [f"{first}, valid_to: {at[0]}}}", f"{first}, valid_from: {at[1]}}}"]
            else:
                lines.append(f"{first}}}")
        lines.append(f"  - {{team: edu, model: {model}, gpus: 3, queue: shared-q, cohort: left}}")
        for cohort in ("left", "root"):
            if rng.random() < 0.3:
                payer = rng.choice(("", "team: bio, "))
                more = rng.choice(("", ", lending_limit: 1"))
                lines.append(f"  - {{{payer}shared: true, model: {model}, gpus: 5, cohort: {cohort}{more}}}")
    return lines


def random_reservations(rng: random.Random, hours: int) -> str:
    """Reservations of the queues of random cells, whole GPUs, one after the other with and without breaks."""
    lines = []
    for cluster in ("prod", "lab"):
        for queue in (*(f"{team}-q" for team in TEAMS), "shared-q"):
            cuts = sorted(rng.sample(range(-HOUR_MS, (hours + 1) * HOUR_MS), 2 * rng.randint(1, 5)))
            for first, last in pairwise(cuts):
                if rng.random() < 0.7:
                    dates = f"valid_from: {_iso(START_MS + first)}, valid_to: {_iso(START_MS + last)}"
                    names = f"cluster: {cluster}, queue: {queue}, model: {rng.choice(('H100', 'A100-80GB'))}"
                    lines.append(f"  - {{{names}, gpus: {rng.randint(0, 60)}, {dates}}}")
    return "\n".join(("reservations:", *rng.sample(lines, len(lines)))) if lines else "reservations: []"


def _iso(instant_ms: int) -> str:
    from gpucost.domain.time import iso

    return f'"{iso(instant_ms)}"'
