"""``python -m benchmarks.findings_recomputed LEDGER [RECORDING]``: what findings cost, again.

Of each finding that goes on: GPU time and money of its last day, of all its life, and of a day at its rate
of now, beside what the finding says. All of it follows from the intervals of the recording (RECORDING, else
the folder ``recording`` beside the ledger: who held what, what was there, who waited, what was active) and
from the prices of the ledger's lines; none of gpucost's code is run. The instant is the one at which the
finding was last seen: one that the last look did not find again says what it was then.

What is taken from the finding: its subject and since when, the slice that an oversized job fits, the replicas
that a server needs, and for how many GPUs the memory of CPU-only pods would have been (``boards_now``).
"""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pandas as pd
from numpy.typing import NDArray

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
_SINCE_WAITING_MS = 15 * 60_000
_PAUSE_MS = 10 * 60_000
_FINDINGS = (
    "select id, pattern, variant, subject_name, subject_uid, subject_namespace, since_ms, last_seen_ms, "
    "board_ms, nano, boards_now, content from finding where state != 'resolved' order by nano desc"
)
_RATES = (
    "select distinct n.node, w.start_ms, w.end_ms, r.nano_per_board_hour from usage_line u "
    "join rate r on r.id = u.rate_id join unit n on n.id = u.unit_id "
    "join ledger_window w on w.id = u.window_id where r.nano_per_board_hour is not null order by 1, 2"
)


_Left: TypeAlias = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]


class Piece(NamedTuple):
    """``boards`` of a node in ``[start_ms, end_ms)``."""

    node: str
    start_ms: int
    end_ms: int
    boards: Fraction


class Cost(NamedTuple):
    """GPU-seconds and money."""

    seconds: float
    money: float


@dataclass(frozen=True)
class Said:
    """A finding as the ledger has it."""

    id: int
    pattern: str
    variant: str
    name: str
    uid: str
    namespace: str
    since_ms: int
    seen_ms: int
    board_ms: int
    nano: int | None
    boards_now: float
    text: str

    @property
    def content(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.text)
        return found

    @property
    def day(self) -> Cost:
        return Cost(self.board_ms / 1000, (self.nano or 0) / 1e9)

    @property
    def daily(self) -> float | None:
        hourly = self.content["nano_per_hour"]
        return hourly * 24 / 1e9 if hourly is not None and self.boards_now > 0 else None


@dataclass(frozen=True)
class Again:
    """The same, computed again: of the last day, of all its life, and of a day at the rate of now."""

    day: Cost
    life: Cost
    daily: float | None


@dataclass(frozen=True)
class Recomputed:
    """A ledger of findings and the recording that it was made of."""

    ledger: Path
    recording: Path

    def findings(self) -> Iterator[tuple[Said, Again]]:
        with sqlite3.connect(f"file:{self.ledger}?mode=ro", uri=True) as ledger:
            rows = ledger.execute(_FINDINGS).fetchall()
        for row in rows:
            said = Said(*row)
            pieces = self._pieces(said)
            day = self.cost(pieces, max(said.since_ms, said.seen_ms - DAY_MS), said.seen_ms)
            life = self.cost(pieces, said.since_ms, said.seen_ms)
            now = self.cost(pieces, said.seen_ms - 1, said.seen_ms).money
            yield said, Again(day, life, now * DAY_MS or None)

    @cached_property
    def _rates(self) -> dict[str, list[tuple[int, int, int]]]:
        with sqlite3.connect(f"file:{self.ledger}?mode=ro", uri=True) as ledger:
            found: dict[str, list[tuple[int, int, int]]] = {}
            for node, start, end, rate in ledger.execute(_RATES):
                spans = found.setdefault(node, [])
                if spans and spans[-1][1:] == (start, rate):
                    start, _, _ = spans.pop()
                spans.append((start, end, rate))
        return found

    def cost(self, pieces: Sequence[Piece], start_ms: int, end_ms: int) -> Cost:
        time = money = Fraction(0)
        for node, begin, end, boards in pieces:
            a, b = max(begin, start_ms), min(end, end_ms)
            if a >= b:
                continue
            time += boards * (b - a)
            for first, last, rate in self._rates[node]:
                money += boards * max(0, min(b, last) - max(a, first)) * rate
        return Cost(float(time) / 1000, float(money / HOUR_MS) / 1e9)

    def _frame(self, name: str) -> pd.DataFrame:
        return pd.read_parquet(self.recording / f"{name}.parquet")

    @cached_property
    def _held(self) -> pd.DataFrame:
        return self._frame("allocations")

    @cached_property
    def _capacity(self) -> pd.DataFrame:
        return self._frame("capacity")

    @cached_property
    def _shares(self) -> dict[tuple[str, str], Fraction]:
        """GPUs of a unit by node and resource: 2g is two sevenths, of replicas each has its part, and a
        node that says how many GPUs it has says what each of its units is."""
        boards = {row.node: int(row.boards) for row in _rows(self._frame("nodes"))}
        found = {}
        for row in _rows(self._capacity):
            slice_ = re.search(r"mig-(\d)g\.", row.resource)
            found[row.node, row.resource] = (
                Fraction(int(slice_[1]), 7) if slice_ else Fraction(boards[row.node], int(row.capacity))
            )
        return found

    def _pieces(self, said: Said) -> list[Piece]:
        match said.pattern, said.variant:
            case "idle_allocation", "whole":
                return self._of_job(said)
            case "idle_allocation", "partly":
                return self._idle_gpus(said)
            case "oversized_request", "fits_smaller":
                fits = re.search(r"mig-(\d)g\.", said.content["draft"]["action"]["patch"])
                assert fits
                saved = 1 - Fraction(int(fits[1]), 7)
                return [each._replace(boards=each.boards * saved) for each in self._of_job(said)]
            case "oversized_request", "serving_peak":
                return self._beyond_replicas(said)
            case "cpu_only_pods", _:
                boards = Fraction(said.boards_now).limit_denominator(56)
                return [Piece(said.name, said.since_ms, said.seen_ms, boards)]
            case "reserved_unused", _:
                return self._unused_quota(said)
            case "fragmentation", "unusable":
                return list(self._unusable(said, str(said.uid).partition("/")[2]))
        raise NotImplementedError(said.pattern, said.variant)

    def _of_job(self, said: Said) -> list[Piece]:
        rows = self._held[self._held["job_uid"] == said.uid]
        return [
            Piece(row.node, row.start_ms, row.end_ms, int(row.count) * self._shares[row.node, row.resource])
            for row in _rows(rows)
        ]

    def _beyond_replicas(self, said: Said) -> list[Piece]:
        """Of each of its replicas the part that all together are too many, as long as so many ran."""
        evidence = {each["name"]: str(each["value"]) for each in said.content["draft"]["evidence"]}
        needed = re.fullmatch(r"(\d+) replicas?", evidence["its peak needs"])
        assert needed, evidence
        pods = self._of_job(said)
        edges = sorted({edge for pod in pods for edge in (pod.start_ms, pod.end_ms)})
        found = []
        for start, end in pairwise(edges):
            here = [pod for pod in pods if pod.start_ms <= start < pod.end_ms]
            if len(here) > int(needed[1]):
                part = 1 - Fraction(int(needed[1]), len(here))
                found += [Piece(pod.node, start, end, pod.boards * part) for pod in here]
        return found

    def _idle_gpus(self, said: Said) -> list[Piece]:
        """A whole GPU for each GPU of the job that was not active in a hundredth of the time since then."""
        activity = self._frame("activity")
        pods = self._held[self._held["job_uid"] == said.uid]["pod_uid"]
        rows = activity[activity["pod_uid"].isin(pods) & (activity["start_ms"] >= said.since_ms)]
        sums = rows.groupby(["node", "gpu"], observed=True)[["observed_ms", "busy_ms"]].sum()
        idle = sums[sums["busy_ms"] < sums["observed_ms"] / 100]
        return [Piece(node, said.since_ms, said.seen_ms, Fraction(1)) for node, _ in idle.index]

    def _unused_quota(self, said: Said) -> list[Piece]:
        """Nominal quota less what is used, a part of a GPU on every node of the flavor. No queue borrows."""
        quotas = self._frame("quotas")
        rows = quotas[(quotas["queue"] == said.name) & (quotas["nominal"] > 0)]
        found = []
        for row in _rows(rows):
            of_flavor = self._held[(self._held["flavor"] == row.flavor)]
            nodes = sorted(set(of_flavor["node"]))
            share = self._shares[nodes[0], row.resource]
            boards = Fraction(row.nominal - row.used) * share / len(nodes)
            found += [Piece(node, row.start_ms, row.end_ms, boards) for node in nodes]
        return found

    def _unusable(self, said: Said, resource: str) -> Iterator[Piece]:
        """Free units while a job waited that did not fit on them, less what blocked jobs had of them."""
        queue = Queue(self._frame("demand"), self._capacity, self._held, self._frame("quotas"), resource)
        products = {row.node: row.product for row in _rows(self._frame("nodes"))}
        looks = list(queue.looks(said.since_ms, said.seen_ms, products))
        blocked = _blocked(looks)
        for look in looks:
            for row, node, units in look.claims:
                if (row, look.start_ms) not in blocked:
                    boards = units * self._shares[node, resource]
                    yield Piece(node, look.start_ms, look.end_ms, boards)


class Waiting(NamedTuple):
    """A row of the demand, with the wait that it is part of."""

    row: int
    namespace: str
    job_uid: str
    pod_set: str
    cluster_queue: str
    products: frozenset[str]
    pods: int
    least: int
    units: int
    layer: str
    start_ms: int
    end_ms: int
    since_ms: int


@dataclass(frozen=True)
class Look:
    """A stretch in which nothing changed: (row, node, units) of units that fit no waiting job, and the jobs
    that are blocked."""

    start_ms: int
    end_ms: int
    claims: tuple[tuple[int, str, int], ...]
    blocked: tuple[Waiting, ...]


@dataclass(frozen=True)
class Queue:
    """Who waits for a resource, and what is free of it: look after look, the longest waiting first."""

    demand: pd.DataFrame
    capacity: pd.DataFrame
    held: pd.DataFrame
    quotas: pd.DataFrame
    resource: str

    def looks(self, start_ms: int, end_ms: int, products: dict[str, str]) -> Iterator[Look]:
        capacity, held = (frame[frame["resource"] == self.resource] for frame in (self.capacity, self.held))
        waits = self._waits(capacity, products, start_ms)
        edges = {start_ms, end_ms, *(edge for one in waits for edge in (one.start_ms, one.end_ms))}
        changes: dict[int, list[tuple[str, int]]] = {}
        given = zip(capacity["node"], capacity["allocatable"] * capacity["schedulable"], strict=True)
        for frame, amounts in ((capacity, given), (held, zip(held["node"], -held["count"], strict=True))):
            spans = zip(frame["start_ms"], frame["end_ms"], amounts, strict=True)
            for begin, end, (node, count) in spans:
                changes.setdefault(max(int(begin), start_ms), []).append((node, int(count)))
                changes.setdefault(max(int(end), start_ms), []).append((node, -int(count)))
        free = dict.fromkeys(sorted(capacity["node"].unique()), 0)
        times = sorted(edge for edge in edges | changes.keys() if start_ms <= edge <= end_ms)
        for now, then in pairwise(times):
            for node, count in changes.get(now, ()):
                free[node] += count
            yield self._look(now, then, waits, {node: max(0, n) for node, n in free.items()}, products)

    def _waits(self, capacity: pd.DataFrame, products: dict[str, str], start_ms: int) -> list[Waiting]:
        rows = self.demand[(self.demand["resource"] == self.resource) & (self.demand["end_ms"] > start_ms)]
        found: list[Waiting] = []
        for _, wait in rows.sort_values("start_ms").groupby(["namespace", "job_uid", "pod_set"]):
            chain: list[Waiting] = []
            for row in _rows(wait):
                if chain and row.start_ms > chain[-1].end_ms:
                    found += _long(chain)
                    chain = []
                since_ms = chain[0].since_ms if chain else row.start_ms
                kinds = frozenset(row.products.split("|") if row.products else products.values())
                about = (row.namespace, row.job_uid, row.pod_set, row.cluster_queue, kinds)
                counts = (int(row.pods), max(1, int(row.min_pods)), int(row.units), row.layer)
                chain.append(Waiting(row.Index, *about, *counts, row.start_ms, row.end_ms, since_ms))
            found += _long(chain)
        most: dict[str, int] = {}
        for row in _rows(capacity):
            most[row.node] = max(most.get(row.node, 0), int(row.allocatable))
        able = [
            one
            for one in found
            if sum(most[n] // max(1, one.units) for n in most if products[n] in one.products) >= one.least
        ]
        return sorted(able, key=lambda one: (one.since_ms, one.job_uid, one.pod_set))

    def _look(
        self, now: int, then: int, waits: Sequence[Waiting], free: dict[str, int], products: dict[str, str]
    ) -> Look:
        unplaced, claims, blocked = [], [], []
        for one in (each for each in waits if each.start_ms <= now < each.end_ms):
            nodes = [node for node in free if products[node] in one.products]
            room = sum(free[node] // max(1, one.units) for node in nodes)
            if room < one.least:
                unplaced.append((one, nodes))
                continue
            left = min(one.pods, room)
            for node in sorted(nodes, key=lambda node: free[node]):
                pods = min(left, free[node] // max(1, one.units))
                free[node] -= pods * one.units
                left -= pods
        for one, nodes in unplaced:
            total, wanted = sum(free[node] for node in nodes), one.pods * one.units
            if total >= one.least * one.units and self._has_quota(one, then):
                blocked.append(one)
            for node in sorted(nodes, key=lambda node: -free[node]):
                taken = min(wanted, free[node])
                free[node] -= taken
                wanted -= taken
                if taken:
                    claims.append((one.row, node, taken))
        return Look(now, then, tuple(claims), tuple(blocked))

    def _has_quota(self, one: Waiting, at_ms: int) -> bool:
        if one.layer != "quota":
            return True
        start, end, left = self._left[one.cluster_queue]
        return float(left[(start < at_ms) & (end >= at_ms)].sum()) >= one.least * one.units

    @cached_property
    def _left(self) -> dict[str, _Left]:
        """(starts, ends, what is left) of the quotas of each queue."""
        rows = self.quotas[self.quotas["resource"] == self.resource]
        rows = rows.assign(left=rows["nominal"] - rows["used"])
        found: dict[str, _Left] = {}
        for queue, its in rows.groupby("queue", observed=True):
            found[str(queue)] = its["start_ms"].to_numpy(), its["end_ms"].to_numpy(), its["left"].to_numpy()
        return found


def _rows(frame: pd.DataFrame) -> list[Any]:
    return list(frame.itertuples())


def _long(chain: Sequence[Waiting]) -> Sequence[Waiting]:
    """All rows of a wait that was long enough to be looked at, else none."""
    return chain if chain and chain[-1].end_ms - chain[0].since_ms >= _SINCE_WAITING_MS else ()


def _blocked(looks: Sequence[Look]) -> set[tuple[int, int]]:
    """(row, start of the look) of those that were blocked for long enough, short breaks not counted."""
    jobs: dict[tuple[str, str], list[tuple[int, Look]]] = {}
    for look in looks:
        for one in look.blocked:
            jobs.setdefault((one.namespace, one.job_uid), []).append((one.row, look))
    found = set[tuple[int, int]]()
    for entries in jobs.values():
        run: list[tuple[int, Look]] = []
        for entry in [*entries, None]:
            if entry is None or (run and entry[1].start_ms - run[-1][1].end_ms >= _PAUSE_MS):
                if run[-1][1].end_ms - run[0][1].start_ms >= _SINCE_WAITING_MS:
                    found |= {(row, look.start_ms) for row, look in run}
                run = []
            if entry is not None:
                run.append(entry)
    return found


def main(ledger: str, recording: str = "") -> None:
    path = Path(ledger)
    print("| finding | subject | last day, GPU-s: says | again | USD: says | again | "
          "a day at its rate of now: says | again | since | all of it, GPU-s | USD |")  # fmt: skip
    print("| --- | --- " + "| ---: " * 6 + "| --- | ---: | ---: |")
    for said, again in Recomputed(
        path, Path(recording) if recording else path.parent / "recording"
    ).findings():
        since = pd.Timestamp(said.since_ms, unit="ms").isoformat()
        has_rate = said.daily is not None
        daily = [f"{each or 0:,.2f}" if has_rate else "–" for each in (said.daily, again.daily)]
        cells = (
            f"{said.id} {said.pattern} {said.variant}",
            f"{said.namespace}/{said.name}".strip("/"),
            *(f"{each.seconds:,.0f}" for each in (said.day, again.day)),
            *(f"{each.money:,.2f}" for each in (said.day, again.day)),
            *daily,
            f"{since}Z",
            f"{again.life.seconds:,.0f}",
            f"{again.life.money:,.2f}",
        )
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main(*sys.argv[1:3])
