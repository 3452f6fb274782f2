"""A pod's time on one day: what OpenCost bills under its name, and what each pod of that name held of it.

OpenCost bills one stretch, from its first sample of a running pod of a name to the last. Ours are lives, one
for each pod, from when it was placed until it ended. Six figures for each node and team lead from the one to
the others.

The inputs of a comparison are here too: what OpenCost bills by day, and our lines of the same days.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from gpucost.contract.opencost import COUNTED_RESOURCES, BilledNode, BilledPod, OpenCostRelease
from gpucost.domain.buckets import Bucket
from gpucost.domain.money import round_half_even, split_by_weight
from gpucost.domain.rates import Rate
from gpucost.domain.time import HOUR_MS

# To be read from the ledger in steps of a day.
COMPARED_DIMS = (
    *("cluster", "node", "resource", "share_num", "share_den"),
    *("bucket", "namespace", "pod", "pod_uid", "team", "rate_id"),
)


@dataclass(frozen=True, slots=True)
class OpenCostDay:
    """What OpenCost bills in one cluster on one UTC day, from its own series, and its release."""

    cluster: str
    day_ms: int
    nodes: Sequence[BilledNode]
    pods: Sequence[BilledPod]
    release: OpenCostRelease = field(default_factory=OpenCostRelease)


@dataclass(frozen=True, slots=True)
class OurLine:
    """One of our lines of one day. ``unit_ms`` is time in units as Kubernetes counts them; ``list_nano`` is
    before discounts. Both costs are those of the priced part."""

    cluster: str
    day_ms: int
    node: str
    resource: str
    bucket: Bucket
    namespace: str
    pod: str
    team: str
    unit_ms: int
    board_ms: int
    list_nano: int
    nano: int
    unpriced_ms: int
    first_ms: int
    last_ms: int
    busy_ms: int = 0
    observed_ms: int = 0
    uid: str = ""


def lines_of(frame: pd.DataFrame, rates: Mapping[str, Rate]) -> list[OurLine]:
    """``frame`` is an aggregate by COMPARED_DIMS in steps of a day, ``rates`` those that it names."""
    return [_line(row, rates) for row in frame.to_dict("records")]


def _line(row: Mapping[object, object], rates: Mapping[str, Rate]) -> OurLine:
    def number(name: str) -> int:
        value = row[name]
        return 0 if value is pd.NA or value is None else int(str(value))

    def text(name: str) -> str:
        return str(row[name])

    nano, board_ms, unpriced = number("nano"), number("board_ms"), number("unpriced_ms")
    rate = rates.get(text("rate_id"))
    bucket = Bucket(text("bucket"))
    off = 0
    if rate is not None and bucket is not Bucket.OVERCOMMITTED:
        off = rate.list_nano_per_board_hour - rate.nano_per_board_hour
    return OurLine(
        cluster=text("cluster"),
        day_ms=number("step_start_ms"),
        node=text("node"),
        resource=text("resource"),
        bucket=bucket,
        namespace=text("namespace"),
        pod=text("pod"),
        team=text("team"),
        unit_ms=round_half_even(board_ms * number("share_den"), number("share_num")),
        board_ms=board_ms,
        list_nano=nano + round_half_even((board_ms - unpriced) * off, HOUR_MS),
        nano=nano,
        unpriced_ms=unpriced,
        first_ms=number("first_ms"),
        last_ms=number("last_ms"),
        busy_ms=number("busy_ms"),
        observed_ms=number("observed_ms"),
        uid=text("pod_uid"),
    )


Place = tuple[str, str]  # node, team
_Stretch = tuple[int, int]


@dataclass(frozen=True, slots=True)
class OpenCostHeldTime:
    """Unit-milliseconds of resources that OpenCost knows, in six steps: what it bills; with our units;
    without what other pods of the name, or no pod, held of it; with what its sampling rounds off; with time
    held before and after; and ours, without what series reported after the end. For a name that held nothing,
    all six are what OpenCost bills. ``billed_run_ms`` is the time for which OpenCost saw it run;
    ``is_doubled``: the held resource is not one that OpenCost knows, and is billed by another that stands for
    it.
    """

    billed: int = 0
    with_our_units: int = 0
    of_these_pods: int = 0
    unrounded: int = 0
    with_waits: int = 0
    ours: int = 0
    billed_run_ms: int = 0
    is_doubled: bool = False


def held_times(
    bill: BilledPod | None, lines: Mapping[Place, Sequence[OurLine]], resolution_ms: int
) -> dict[Place, OpenCostHeldTime]:
    """The held times of the pods of one name, by node and team. ``lines`` are all of theirs that day."""
    ours = {place: _Lives.of(bill, own) for place, own in lines.items()}
    if bill is None:
        return {place: lives.never_seen(resolution_ms) for place, lives in ours.items()}
    shares = _shares(bill, ours)
    if not any(lives.unit_ms for lives in ours.values()):
        return {place: _of_nothing(bill, shares.get(place, 0)) for place in {**ours, **shares}}
    whole = _Name.of(bill, ours.values())
    return {
        place: whole.time_of(ours.get(place, _Lives()), share, resolution_ms)
        for place, share in {**dict.fromkeys(ours, 0), **shares}.items()
    }


def _of_nothing(bill: BilledPod, share_ms: int) -> OpenCostHeldTime:
    billed = _part(bill.unit_ms, share_ms, bill.running_ms)
    return OpenCostHeldTime(billed, billed, billed, billed, billed, billed, share_ms)


def _shares(bill: BilledPod, ours: Mapping[Place, _Lives]) -> dict[Place, int]:
    """The bill's parts, which add up to its time: for teams on its node by what each held; else all of it
    goes to the team that held most elsewhere, or to no team."""
    at_home = {place: lives.unit_ms for place, lives in ours.items() if place[0] == bill.node}
    if not any(at_home.values()):
        _, team = max(((lives.unit_ms, place[1]) for place, lives in ours.items()), default=(0, ""))
        first = next(iter(at_home), (bill.node, team))
        return {first: bill.running_ms}
    return split_by_weight(bill.running_ms, at_home)


@dataclass(frozen=True, slots=True)
class _Lives:
    """From when to when the pods of one name, node and team held something, and how much."""

    stretches: tuple[_Stretch, ...] = ()
    unit_ms: int = 0
    is_doubled: bool = False

    @classmethod
    def of(cls, bill: BilledPod | None, lines: Sequence[OurLine]) -> _Lives:
        known = [line for line in lines if line.resource in COUNTED_RESOURCES]
        # Held under two names, of which OpenCost bills one: HAMi's cores are held as nvidia.com/gpu too.
        doubled = not known and bill is not None and bill.unit_ms > 0
        by_uid: dict[str, _Stretch] = {}
        for line in lines if doubled else known:
            first, last = by_uid.get(line.uid, (line.first_ms, line.last_ms))
            by_uid[line.uid] = min(first, line.first_ms), max(last, line.last_ms)
        found = cls(tuple(sorted(by_uid.values())), sum(line.unit_ms for line in known))
        if not doubled or bill is None:
            return found
        unit_ms = _part(bill.unit_ms, found.length_ms, bill.running_ms)
        return cls(found.stretches, unit_ms or bill.unit_ms, is_doubled=True)

    @property
    def length_ms(self) -> int:
        return sum(last - first for first, last in self.stretches)

    def units(self, wall_ms: int) -> int:
        """The unit-milliseconds of ``wall_ms`` of its time."""
        return _part(self.unit_ms, wall_ms, self.length_ms)

    def inside(self, start_ms: int, end_ms: int) -> int:
        return sum(max(0, min(last, end_ms) - max(first, start_ms)) for first, last in self.stretches)

    def waiting(self, start_ms: int, end_ms: int, resolution_ms: int) -> int:
        """The time that lies further outside of start and end than sampling can round off."""
        found = 0
        for first, last in self.stretches:
            before = max(0, min(last, start_ms) - first)
            after = max(0, last - max(first, end_ms))
            found += max(0, before - resolution_ms) + max(0, after - resolution_ms)
        return found

    def never_seen(self, resolution_ms: int) -> OpenCostHeldTime:
        """No sample found it running: it was over between two of them, or it never ran."""
        short = _Lives(tuple(each for each in self.stretches if each[1] - each[0] <= resolution_ms))
        between = self.units(short.length_ms) if self.length_ms else self.unit_ms
        return OpenCostHeldTime(unrounded=between, with_waits=self.unit_ms, ours=self.unit_ms)


@dataclass(frozen=True, slots=True)
class _Name:
    """The bill, and all that was held under its name: how long by any pod, and from when to when."""

    bill: BilledPod
    unit_ms: int
    length_ms: int
    first_ms: int
    last_ms: int

    @classmethod
    def of(cls, bill: BilledPod, ours: Iterable[_Lives]) -> _Name:
        every = [*ours]
        stretches = sorted(stretch for lives in every for stretch in lives.stretches)
        length, until = 0, 0
        for first, last in stretches:
            length += max(0, last - max(first, until))
            until = max(until, last)
        if not length:
            return cls(bill, bill.unit_ms, bill.running_ms, bill.start_ms, bill.end_ms)
        return cls(bill, sum(lives.unit_ms for lives in every), length, stretches[0][0], until)

    def time_of(self, lives: _Lives, share_ms: int, resolution_ms: int) -> OpenCostHeldTime:
        """The time at one node and team; ``share_ms`` is its part of the bill's time."""
        bill = self.bill

        def units(wall_ms: int) -> int:
            mine = _part(wall_ms, share_ms, bill.running_ms)
            return _part(self.unit_ms, mine, self.length_ms)

        early = max(0, min(self.first_ms, bill.end_ms) - bill.start_ms)
        late = max(0, bill.end_ms - max(self.last_ms, bill.start_ms))
        lingering = max(0, early - resolution_ms) + max(0, late - resolution_ms)
        inside = lives.units(lives.inside(bill.start_ms, bill.end_ms))
        with_waits = lives.unit_ms + units(lingering)
        return OpenCostHeldTime(
            billed=_part(bill.unit_ms, share_ms, bill.running_ms),
            with_our_units=units(bill.running_ms),
            of_these_pods=inside + units(early + late),
            unrounded=with_waits - lives.units(lives.waiting(bill.start_ms, bill.end_ms, resolution_ms)),
            with_waits=with_waits,
            ours=lives.unit_ms,
            billed_run_ms=share_ms,
            is_doubled=lives.is_doubled,
        )


def _part(amount: int, of: int, whole: int) -> int:
    """``amount`` × ``of`` / ``whole``, rounded; 0 of nothing."""
    return round_half_even(amount * of, whole) if whole else 0
