"""Every GPU-second in one bucket: overlapping claims on GPU time are settled by the order of buckets.

An account is what one pod held on one node, what nobody held there, or what was missing there. At every
instant the claims on an account are served in the order of the waste ledger
(``gpucost.domain.buckets.Waste``), claims of one bucket by the order of their findings, until nothing is
left: what a claim gets is what it wastes. Claims that name their GPUs get nothing for those that an earlier
one named.

The mechanism is a sweep over the edges of claims and holdings of an account. Between two edges nothing
changes: what is held is counted by resource, in GPUs, and each claim in its turn takes what it asks for of
what is left. Neighbouring pieces of one draft are joined again. A claim without a number of GPUs takes all
that is left; one without a resource takes of any, in the order of their names.

By a fixed order and not by the larger claim, because the waste table must be the same whoever is looked at
first, and its buckets must add up to capacity: a GPU that is broken is unavailable, whether or not its pod
was idle as well. Pieces of an account never add up to more than it has, and their sums do not depend on how
claims were cut. Free and missing units come from the frames of capacity and allocations, with the share of
a GPU that each unit is; a node that takes no work has nothing free.

GPUs are floats here, and below 1e-9 of one is rounding. Whole milliseconds and nano-units come later, in
``gpucost.attribution.waste``, where pieces meet usage lines and each line's parts add up to the line.

Pure. ``engine.evaluation`` calls ``resolve`` once per look, with the drafts of all rules; its frame
(WASTE_PIECES) goes on to the findings' amounts and to the waste ledger.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import pandas as pd

from gpucost.attribution.frames import conform, empty_frame
from gpucost.contract.frames import WASTE_PIECES
from gpucost.detectors.findings import FindingDraft, WasteEpisode
from gpucost.detectors.inputs.detector_facts import ClusterHistory
from gpucost.domain.buckets import (
    ORDER,
    UNALLOCATED,
    UNAVAILABLE,
    Waste,
)

NEGLIGIBLE = 1e-9
"""Numbers of GPUs below this are rounding errors of floats."""

_Account: TypeAlias = tuple[str, str]
"""Node, and pod uid, UNALLOCATED or UNAVAILABLE."""


class AccountHolding(NamedTuple):
    """``boards`` of one resource that an account has in ``[start, end)``."""

    start_ms: int
    end_ms: int
    resource: str
    boards: float


@dataclass(frozen=True, slots=True)
class _Claim:
    """An episode clipped to the window, and the position of the draft it belongs to."""

    episode: WasteEpisode
    draft: int
    start_ms: int
    end_ms: int

    @property
    def turn(self) -> tuple[int, int, int]:
        return ORDER[self.episode.waste], self.draft, self.start_ms


_Row: TypeAlias = tuple[str, str, str, str, int, int, str, float, int]


def resolve(history: ClusterHistory, drafts: Sequence[FindingDraft]) -> pd.DataFrame:
    """The pieces that every draft's claims get: a frame of WASTE_PIECES, ``draft`` being the position in
    ``drafts``.

    Pieces of one account never add up to more than it has; their sums do not depend on how claims were cut.
    """
    claims = _by_account(history, drafts)
    if not claims:
        return empty_frame(WASTE_PIECES)
    holdings = _holdings(history, claims.keys())
    cluster = str(next(iter(drafts)).subject.cluster)
    rows = [
        row
        for account in sorted(claims)
        for row in _joined(_settled(cluster, account, claims[account], holdings.get(account, [])))
    ]
    if not rows:
        return empty_frame(WASTE_PIECES)
    columns = zip(WASTE_PIECES.column_names, zip(*rows, strict=True), strict=True)
    return conform(pd.DataFrame({name: list(values) for name, values in columns}), WASTE_PIECES)


def _by_account(history: ClusterHistory, drafts: Sequence[FindingDraft]) -> dict[_Account, list[_Claim]]:
    window, claims = history.window, defaultdict[_Account, list[_Claim]](list)
    for n, draft in enumerate(drafts):
        for episode in draft.episodes:
            start, end = max(episode.start_ms, window.start_ms), min(episode.end_ms, window.end_ms)
            if start < end:
                claims[episode.node, _holder(episode)].append(_Claim(episode, n, start, end))
    return dict(claims)


def _holder(episode: WasteEpisode) -> str:
    if episode.pod_uid:
        return episode.pod_uid
    return UNAVAILABLE if episode.waste is Waste.UNAVAILABLE else UNALLOCATED


def _settled(
    cluster: str, account: _Account, claims: list[_Claim], holdings: list[AccountHolding]
) -> Iterator[_Row]:
    """Pieces of one account, ordered by time."""
    asking, having = _Active(claims), _Active(holdings)
    spans: list[_Span] = [*claims, *holdings]
    cuts = sorted({edge for span in spans for edge in (span.start_ms, span.end_ms)})
    for start, end in pairwise(cuts):
        turns = asking.at(start)
        left: dict[str, float] = {}
        for held in having.at(start):
            left[held.resource] = left.get(held.resource, 0.0) + held.boards
        named = dict[str, int]()
        for claim in sorted(turns, key=lambda claim: claim.turn):
            for resource, boards in _served(claim, left, named):
                place = (cluster, account[0], resource, account[1], start, end)
                yield (*place, claim.episode.waste.value, boards, claim.draft)


class _Span(Protocol):
    @property
    def start_ms(self) -> int: ...

    @property
    def end_ms(self) -> int: ...


_S = TypeVar("_S", bound=_Span)


class _Active(Generic[_S]):
    """The spans of a list that are active at an instant; instants must come in order."""

    def __init__(self, spans: Iterable[_S]) -> None:
        self._coming = sorted(spans, key=lambda span: span.start_ms, reverse=True)
        self._here: list[_S] = []

    def at(self, now_ms: int) -> list[_S]:
        while self._coming and self._coming[-1].start_ms <= now_ms:
            self._here.append(self._coming.pop())
        self._here = [span for span in self._here if span.end_ms > now_ms]
        return self._here


def _served(claim: _Claim, left: dict[str, float], named: dict[str, int]) -> Iterator[tuple[str, float]]:
    """What the claim gets of what is left, by resource; ``left`` is reduced by it. GPUs that one of another
    draft named before (``named``) are not claimed again: of eight, that one is broken makes no other idle."""
    episode = claim.episode
    wanted = float("inf") if episode.boards is None else episode.boards
    if episode.boards is not None and episode.gpus:
        mine = claim.draft
        places = [(gpu, gpu.partition("/")[0]) for gpu in episode.gpus]
        free = [gpu for gpu, whole in places if {named.get(gpu, mine), named.get(whole, mine)} == {mine}]
        wanted *= len(free) / len(episode.gpus)
        named.update(dict.fromkeys(free, mine))
    for resource in [episode.resource] if episode.resource else sorted(left):
        taken = min(wanted, left.get(resource, 0.0))
        if taken > NEGLIGIBLE:
            left[resource] -= taken
            wanted -= taken
            yield resource, taken


def _joined(rows: Iterable[_Row]) -> Iterator[_Row]:
    """Pieces that touch and are otherwise equal, merged."""
    open_: dict[tuple[object, ...], _Row] = {}
    for row in rows:
        key = (*row[:4], *row[6:])
        before = open_.get(key)
        if before is not None and before[5] == row[4]:
            open_[key] = (*before[:5], row[5], *before[6:])
            continue
        if before is not None:
            yield before
        open_[key] = row
    yield from open_.values()


def _holdings(
    history: ClusterHistory, accounts: Iterable[_Account]
) -> Mapping[_Account, list[AccountHolding]]:
    wanted = set(accounts)
    found: dict[_Account, list[AccountHolding]] = defaultdict(list)
    held = history.held
    held = held[held["pod_uid"].isin({holder for _, holder in wanted}) & held["boards"].notna()]
    columns = ("node", "pod_uid", "start_ms", "end_ms", "resource", "boards")
    for node, uid, *holding in zip(*(held[name].tolist() for name in columns), strict=True):
        if (node, uid) in wanted:
            found[node, uid].append(AccountHolding(*holding))
    for holder in (UNALLOCATED, UNAVAILABLE):
        nodes = {node for node, of in wanted if of == holder}
        if nodes:
            _add_nobodys(history, nodes, holder, found)
    return found


def _add_nobodys(
    history: ClusterHistory, nodes: set[str], holder: str, found: dict[_Account, list[AccountHolding]]
) -> None:
    """Adds what had no holder on ``nodes`` over time: free, or missing, as attribution's sweep computes
    it."""
    capacity, held = history.frames.capacity, history.frames.allocations
    capacity, held = capacity[capacity["node"].isin(nodes)], held[held["node"].isin(nodes)]
    pods: dict[tuple[str, str], list[tuple[int, int, int]]] = defaultdict(list)
    columns = ("node", "resource", "start_ms", "end_ms", "count")
    for node, resource, *interval in zip(*(held[name].tolist() for name in columns), strict=True):
        pods[node, resource].append(tuple(interval))
    names = ("cluster", "node", "resource", "start_ms", "end_ms", "expected", "capacity", "allocatable")
    rows = zip(*(capacity[name].tolist() for name in (*names, "schedulable")), strict=True)
    for cluster, node, resource, start, end, expected, has, allocatable, schedulable in rows:
        share = history.shares.get((cluster, node, resource))
        if share is None:
            continue
        units = max(expected, has, allocatable)
        for a, b, count in _counts(pods.get((node, resource), ()), start, end):
            missing = min(units - allocatable, max(0, units - count))
            free = max(0, units - count) - missing
            amount = missing if holder == UNAVAILABLE else free * schedulable
            if amount > 0:
                found[node, holder].append(AccountHolding(a, b, resource, float(amount * share)))


def _counts(
    intervals: Sequence[tuple[int, int, int]], start: int, end: int
) -> Iterator[tuple[int, int, int]]:
    """Stretches of ``[start, end)`` and how many units are held in each."""
    inside = [(max(a, start), min(b, end), count) for a, b, count in intervals if a < end and b > start]
    changes: dict[int, int] = defaultdict(int, {start: 0, end: 0})
    for a, b, count in inside:
        changes[a] += count
        changes[b] -= count
    held = 0
    for a, b in pairwise(sorted(changes)):
        held += changes[a]
        yield a, b, held
