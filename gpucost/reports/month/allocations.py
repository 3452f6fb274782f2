"""Allocations: usage by any dimensions and steps of time, with a policy for the time that no pod held.

Sharing happens inside a pool, one GPU model of one cluster on one UTC day, first over the teams and then
inside a team, before any filter is applied: what a team is charged does not depend on who looks, by which
dimensions, nor in which steps. Every split is exact, so no policy changes a total.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from itertools import groupby
from math import lcm
from typing import TypeVar

import pandas as pd

from gpucost.contract.frames import HOLDER_COLUMNS
from gpucost.domain.buckets import HOLDER_OF_BUCKET, Bucket
from gpucost.domain.errors import InputError
from gpucost.domain.money import split_by_weight
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import DAY_MS, Window
from gpucost.reports.base.display import duration
from gpucost.reports.base.frame_sums import prepare, sums
from gpucost.reports.base.values import (
    EMPTY,
    NOTHING,
    STEP,
    CostAmount,
    GpuUtilisation,
    MeasureSums,
    added_sums,
    costliest_first,
    named,
)

K = TypeVar("K", bound=Hashable)

POOL = ("cluster", "model")
DIMENSIONS = (
    *("cluster", "node", "resource", "model", "profile", "basis", "instance_type", "capacity_type"),
    *("region", "zone", "pool", "bucket", "namespace", "pod", "pod_uid", "job_kind", "job", "job_uid"),
    *("workload", "queue", "cluster_queue", "flavor", "project", "user", "team", "rate_id"),
)
_HOLDER_DIMS = frozenset({column.name for column in HOLDER_COLUMNS} | {"team"})


class IdlePolicy(StrEnum):
    """Who bears unallocated time: no team, those who held, by their time, or the owners of the quota.

    Unavailable and unknown time is never shared: no team caused it.
    """

    SEPARATE = "separate"
    PROPORTIONAL = "proportional"
    BY_QUOTA = "by_quota"


@dataclass(frozen=True, slots=True)
class AllocationQuery:
    """The query. ``quotas`` are the weights of the teams; only ``by_quota`` reads them.

    Raises InputError for an unknown or repeated dimension, for a policy by quota without quotas, and for a
    step that cuts a day whose idle time is shared.
    """

    window: Window
    group_by: tuple[str, ...]
    step_ms: int | None = None
    idle: IdlePolicy = IdlePolicy.SEPARATE
    quotas: Mapping[str, int | Fraction] = field(default_factory=dict)
    filters: Mapping[str, frozenset[str]] = field(default_factory=dict)
    scope: Scope = EVERYTHING

    def __post_init__(self) -> None:
        allowed = ", ".join(DIMENSIONS)
        for position, dimension in enumerate(self.group_by):
            if dimension not in DIMENSIONS:
                raise InputError("group_by", dimension, allowed)
            if dimension in self.group_by[:position]:
                raise InputError("group_by", dimension, "each dimension once")
        for dimension in self.filters:
            if dimension not in DIMENSIONS:
                raise InputError("filter", dimension, allowed)
        if self.idle is IdlePolicy.BY_QUOTA and not any(weight > 0 for weight in self.quotas.values()):
            raise InputError("quotas", dict(self.quotas), "the weight of at least one team, above 0")
        if self.shares and self.step_ms is not None and self.step_ms % DAY_MS:
            allowed = f"whole days, such as 1d, with idle={self.idle.value}: idle time is shared by UTC day"
            raise InputError("step", duration(self.step_ms), f"{allowed}; any step with idle=separate")

    @property
    def shares(self) -> bool:
        """Whether idle time is shared at all."""
        return self.idle is not IdlePolicy.SEPARATE

    @property
    def read_step_ms(self) -> int | None:
        """The step to read from the ledger: a day where something is shared, whatever steps the rows have."""
        return DAY_MS if self.shares else self.step_ms

    @property
    def dims(self) -> tuple[str, ...]:
        """The dimensions to read from the ledger, for every team: scope and filters come after sharing."""
        asked = {*self.group_by, *self.filters, *POOL, "bucket", "team"}
        return tuple(dimension for dimension in DIMENSIONS if dimension in asked)


@dataclass(frozen=True, slots=True)
class AllocationRow:
    """One group in one step. ``total`` = held + shared_idle + unallocated + unavailable + unknown."""

    window: Window
    group: Mapping[str, str]
    held: CostAmount
    shared_idle: CostAmount
    unallocated: CostAmount
    unavailable: CostAmount
    unknown: CostAmount
    overcommitted: CostAmount
    total: CostAmount
    utilisation: GpuUtilisation


@dataclass(frozen=True, slots=True)
class Allocations:
    """The answer: rows by step, then costliest first; ``total`` is the sum of the rows."""

    window: Window
    currency: str
    group_by: tuple[str, ...]
    step_ms: int | None
    idle: IdlePolicy
    filters: Mapping[str, tuple[str, ...]]
    rows: tuple[AllocationRow, ...]
    total: CostAmount


@dataclass(frozen=True, slots=True)
class _Atom:
    """The smallest part that is shared, filtered and grouped: one time as it was read, one value of every
    dimension."""

    start_ms: int
    values: Mapping[str, str]
    found: MeasureSums
    shared: CostAmount = NOTHING

    @property
    def pool(self) -> tuple[int, str, str]:
        return (self.start_ms, self.values["cluster"], self.values["model"])

    @property
    def bucket(self) -> str:
        return self.values["bucket"]


def allocate(query: AllocationQuery, lines: pd.DataFrame, currency: str) -> Allocations:
    """The allocations of ``lines``, an aggregate by ``query.dims`` and ``query.read_step_ms``.

    ``lines`` must hold every team, or sharing would be wrong; the scope of the query is applied here, after
    it. Raises InputError for a column that is missing and for sums beyond 64 bits.
    """
    atoms = _atoms(query, lines)
    if query.shares:
        atoms = _share(atoms, query)
    seen = [atom for atom in atoms if _passes(atom, query)]
    # Of a shared millisecond some holders get nothing.
    rows = tuple(row for row in _rows(seen, query) if row.total.board_ms or row.total.nano)
    return Allocations(
        window=query.window,
        currency=currency,
        group_by=query.group_by,
        step_ms=query.step_ms,
        idle=query.idle,
        filters={name: tuple(sorted(query.filters[name])) for name in sorted(query.filters)},
        rows=rows,
        total=_added(row.total for row in rows),
    )


def _atoms(query: AllocationQuery, lines: pd.DataFrame) -> list[_Atom]:
    if query.read_step_ms is None:
        lines = lines.assign(**{STEP: query.window.start_ms})
    frame = prepare(lines, (STEP, *query.dims), "lines")
    atoms = [
        _Atom(int(start_ms), _with_holder(named(query.dims, values)), found)
        for (start_ms, *values), found in sums(frame, [STEP, *query.dims]).items()
    ]
    return sorted(atoms, key=lambda atom: (atom.start_ms, tuple(atom.values.values())))


def _with_holder(values: Mapping[str, str]) -> Mapping[str, str]:
    """Time that no pod held, under the name of its pseudo-holder in every dimension of the holder."""
    nobody = HOLDER_OF_BUCKET.get(Bucket(values["bucket"]))
    if nobody is None:
        return values
    return {name: nobody if name in _HOLDER_DIMS and not value else value for name, value in values.items()}


def _share(atoms: Sequence[_Atom], query: AllocationQuery) -> list[_Atom]:
    shared: list[_Atom] = []
    for _, members in groupby(sorted(atoms, key=lambda atom: atom.pool), key=lambda atom: atom.pool):
        pool = list(members)
        idle = [atom for atom in pool if atom.bucket == Bucket.UNALLOCATED]
        held = [atom for atom in pool if _bears(atom)]
        others = [atom for atom in pool if atom.bucket != Bucket.UNALLOCATED and not _bears(atom)]
        if not idle or not (held or query.idle is IdlePolicy.BY_QUOTA):
            shared += pool
            continue
        by_team: dict[str, list[_Atom]] = {}
        for atom in held:
            by_team.setdefault(atom.values["team"], []).append(atom)
        weights = query.quotas if query.idle is IdlePolicy.BY_QUOTA else _time_held(by_team)
        amount = _added(atom.found.amount for atom in idle)
        shared += [*others, *_deal(split_amount(amount, weights), by_team, idle[0])]
    return shared


def _bears(atom: _Atom) -> bool:
    return atom.bucket == Bucket.HELD and atom.found.board_ms > 0


def _time_held(by_team: Mapping[str, Sequence[_Atom]]) -> Mapping[str, int]:
    return {team: sum(atom.found.board_ms for atom in atoms) for team, atoms in by_team.items()}


def _deal(
    parts: Mapping[str, CostAmount], by_team: Mapping[str, Sequence[_Atom]], idle: _Atom
) -> Iterable[_Atom]:
    """The part of every team over what it held, by time; a team that held nothing gets a row of its own.

    The teams' parts are computed before any finer split: they are the same for every grouping.
    """
    for team, atoms in by_team.items():
        dealt = split_amount(
            parts.get(team, NOTHING), {i: atom.found.board_ms for i, atom in enumerate(atoms)}
        )
        yield from (replace(atom, shared=dealt[i]) for i, atom in enumerate(atoms))
    for team, part in parts.items():
        if team not in by_team and part != NOTHING:
            yield replace(idle, values={**idle.values, "team": team}, found=EMPTY, shared=part)


def split_amount(amount: CostAmount, weights: Mapping[K, int | Fraction]) -> dict[K, CostAmount]:
    """``amount`` in exact parts: GPU time, cost and time without a price, each by largest remainder."""
    whole = {key: Fraction(weight) for key, weight in weights.items()}
    denominator = lcm(*(weight.denominator for weight in whole.values()))
    claims = {key: int(weight * denominator) for key, weight in whole.items()}
    board_ms = split_by_weight(amount.board_ms, claims)
    nano = None if amount.nano is None else split_by_weight(amount.nano, claims)
    unpriced = split_by_weight(amount.unpriced_board_ms, claims)
    return {
        key: CostAmount(board_ms[key], None if nano is None else nano[key], unpriced[key]) for key in claims
    }


def _passes(atom: _Atom, query: AllocationQuery) -> bool:
    if query.scope.teams is not None and atom.values["team"] not in query.scope.teams:
        return False
    return all(atom.values[name] in allowed for name, allowed in query.filters.items())


def _rows(atoms: Iterable[_Atom], query: AllocationQuery) -> Iterable[AllocationRow]:
    def key(atom: _Atom) -> tuple[int, tuple[str, ...]]:
        return (_step(query, atom.start_ms).start_ms, tuple(atom.values[name] for name in query.group_by))

    rows = [
        _row(query, start_ms, group, list(members))
        for (start_ms, group), members in groupby(sorted(atoms, key=key), key=key)
    ]
    return sorted(rows, key=lambda row: (row.window, costliest_first(row.total, tuple(row.group.values()))))


def _row(
    query: AllocationQuery, start_ms: int, group: tuple[str, ...], atoms: Sequence[_Atom]
) -> AllocationRow:
    parts = {
        bucket.value: added_sums([atom.found for atom in atoms if atom.bucket == bucket]) for bucket in Bucket
    }
    amounts = {bucket: part.amount for bucket, part in parts.items()}
    shared = _added(atom.shared for atom in atoms)
    capacity = (amounts[bucket.value] for bucket in Bucket if bucket.is_capacity)
    return AllocationRow(
        window=_step(query, start_ms),
        group=named(query.group_by, group),
        **amounts,
        shared_idle=shared,
        total=_added([*capacity, shared]),
        utilisation=parts[Bucket.HELD].utilisation,
    )


def _step(query: AllocationQuery, start_ms: int) -> Window:
    """The step of an instant; the first and the last are cut at the edges of the window."""
    if query.step_ms is None:
        return query.window
    step_start_ms = start_ms // query.step_ms * query.step_ms
    return Window(
        max(step_start_ms, query.window.start_ms), min(step_start_ms + query.step_ms, query.window.end_ms)
    )


def _added(amounts: Iterable[CostAmount]) -> CostAmount:
    return sum(amounts, NOTHING)
