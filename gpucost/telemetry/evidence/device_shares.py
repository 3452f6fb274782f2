"""Devices that several pods have at the same time: who pays which part of them, at every moment.

Pods request whole devices; ``gpucost_pod_gpu_claim_share`` names those of them that other pods may use as
well, and what part of such a device a pod's ResourceClaim has (``domain.gpu.ShareMethod``). ``divide`` takes
these devices out of the pods' rows and puts parts in their place:

- At every moment a device is divided among the claims (or shares of claims) that pods have then: by consumed
  capacity, or a scheduler's fraction, where it is known; those without amounts get equal parts of what these
  leave. A claim's part is
  divided equally among the pods that use it then. What no claim consumes is nobody's.
- A device that one pod has whole stays a whole unit of its resource.
- Parts are counted as units of a resource of their own (``gpu.nvidia.com.dra-capacity``), of which a device
  has as many as the parts of that moment need: eight where claims have 10 and 70 of 80 GiB. So all that
  follows counts in whole numbers, and the parts of a device add up to it, or leave what is free.

Rows are those of frames.ALLOCATIONS and frames.CAPACITY. Parts depend on who has the device at a moment
alone, never on the window that is read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from math import isfinite, lcm
from typing import NamedTuple

from gpucost.contract.frames import ALLOCATIONS, CAPACITY
from gpucost.contract.metrics import POD_CLAIM_SHARE
from gpucost.domain.errors import DataProblem, DataProblemCode
from gpucost.domain.gpu import ShareMethod, shared_resource
from gpucost.telemetry.evidence.evidence_rule import ScrapeEvidence
from gpucost.telemetry.evidence.frame_rows import FrameRow
from gpucost.telemetry.prometheus.cluster_reader import ClusterReader, column, numbers
from gpucost.telemetry.prometheus.promql import by, over_time

MOST_UNITS = 100_000
"""Into how many units a device may be divided. Time is dealt to units in turn, so a part is off by at most a
quarter of as many milliseconds, over any time (decision 1)."""
FEWER_UNITS = 10_080
"""Where more would be needed: parts are rounded to these, and still add up."""
_FINEST = 1_000_000

_LABELS = ("pod_uid", "resource", "device", "claim", "share_id", "method")
_CLUSTER, _NODE, _UID, _RESOURCE, _COUNT, _START, _END = (
    ALLOCATIONS.column_names.index(name)
    for name in ("cluster", "node", "pod_uid", "resource", "count", "start_ms", "end_ms")
)
_COUNTS = [CAPACITY.column_names.index(name) for name in ("expected", "capacity", "allocatable")]
_OF_RESOURCE, _SINCE, _UNTIL, _REPLICAS = (
    CAPACITY.column_names.index(name) for name in ("resource", "start_ms", "end_ms", "replicas")
)


class PodShare(NamedTuple):
    """A device of a pod: ``part`` of it is that of its claim, or of the share ``share_id`` of the claim."""

    device: str
    claim: str
    share_id: str
    method: ShareMethod
    part: Fraction

    @property
    def of_claim(self) -> tuple[str, str]:
        return self.claim, self.share_id


PodShares = Mapping[tuple[str, str], Sequence[PodShare]]
"""By uid of the pod and resource."""


class _Use(NamedTuple):
    """A pod's row of a device, and its share of it."""

    row: FrameRow
    share: PodShare


class DividedTime(NamedTuple):
    """A device from ``start_ms`` to ``end_ms``, with the parts of rows (see ``divide``) in it."""

    start_ms: int
    end_ms: int
    device: str
    method: ShareMethod
    parts: Mapping[FrameRow, Fraction]


def read_shares(reader: ClusterReader, evidence: ScrapeEvidence) -> PodShares:
    """The devices of pods that others may use too; a part that is no part of 1 is taken for unknown."""
    latest = over_time("last_over_time", reader.select(POD_CLAIM_SHARE.name), evidence.range_ms)
    result = reader.vector(by("max", _LABELS, latest), evidence.end_ms)
    found: dict[tuple[str, str], list[PodShare]] = defaultdict(list)
    labels = zip(*(column(result, label) for label in _LABELS), strict=True)
    for (uid, resource, device, claim, share_id, method), value in zip(labels, numbers(result), strict=True):
        found[uid, resource].append(PodShare(device, claim, share_id, *_part(method, value)))
    return found


def _part(method: str, value: float) -> tuple[ShareMethod, Fraction]:
    if method not in set(ShareMethod) or not (isfinite(value) and 0 < value <= 1):
        return ShareMethod.UNKNOWN, Fraction(1)
    return ShareMethod(method), Fraction(value).limit_denominator(_FINEST)


def divide(
    allocations: Sequence[FrameRow], capacity: Sequence[FrameRow], shares: PodShares
) -> tuple[list[FrameRow], list[FrameRow], list[DataProblem]]:
    """Both kinds of rows with the devices of ``shares`` divided among their pods, and problems: devices of
    which the parts are not known, each with its GPU time."""
    rows: list[FrameRow] = []
    uses: dict[tuple[object, ...], dict[str, list[_Use]]] = defaultdict(lambda: defaultdict(list))
    for row in allocations:
        of_pod = shares.get((str(row[_UID]), str(row[_RESOURCE])), ())
        devices = {share.device for share in of_pod}
        rows += _counted(row, int(str(row[_COUNT])) - len(devices))
        for share in of_pod:
            uses[row[_CLUSTER], row[_NODE], row[_RESOURCE]][share.device].append(_Use(row, share))
    problems: list[DataProblem] = []
    changed: dict[tuple[object, ...], list[FrameRow]] = {}
    of_place: dict[tuple[object, ...], list[FrameRow]] = defaultdict(list)
    for row in capacity:
        of_place[row[: _OF_RESOURCE + 1]].append(row)
    for place, of_devices in uses.items():
        divided: list[DividedTime] = []
        for device, found in sorted(of_devices.items()):
            for time in _times(device, found):
                if set(time.parts.values()) == {Fraction(1)}:
                    units = _units_of_one(of_place.get(place, ()), time.start_ms)
                    rows += [_clipped(row, time.start_ms, time.end_ms, units) for row in time.parts]
                else:
                    divided.append(time)
        problems += _unknown(place, divided)
        slices = list(_slices(divided))
        rows += [row for each in slices for row in _parts(each)]
        changed[place] = list(_capacity(place, of_place.get(place, []), slices))
    kept = [row for place, found in of_place.items() if place not in changed for row in found]
    return rows, [*kept, *(row for found in changed.values() for row in found)], problems


def _counted(row: FrameRow, count: int) -> list[FrameRow]:
    return [_clipped(row, row[_START], row[_END], count)] if count > 0 else []


def _clipped(
    row: FrameRow, start_ms: object, end_ms: object, count: int, resource: str | None = None
) -> FrameRow:
    return (*row[:_RESOURCE], resource or row[_RESOURCE], count, start_ms, end_ms)


def _times(device: str, uses: Sequence[_Use]) -> Iterator[DividedTime]:
    """The device's time in stretches in which the same rows have it."""
    edges = sorted({int(str(edge)) for use in uses for edge in (use.row[_START], use.row[_END])})
    for start_ms, end_ms in pairwise(edges):
        now = [use for use in uses if int(str(use.row[_START])) <= start_ms < int(str(use.row[_END]))]
        if now:
            methods = {use.share.method for use in now}
            method = next((each for each in _TOLD_FIRST if each in methods), ShareMethod.CLAIM)
            yield DividedTime(start_ms, end_ms, device, method, _among(now))


_TOLD_FIRST = (ShareMethod.UNKNOWN, ShareMethod.CAPACITY, ShareMethod.FRACTION, ShareMethod.TIME)
_MEASURED = (ShareMethod.CAPACITY, ShareMethod.FRACTION)


def _among(uses: Sequence[_Use]) -> Mapping[FrameRow, Fraction]:
    """The part of each row; together 1, or less where consumed capacities leave some of the device."""
    of_claims: dict[tuple[str, str], list[_Use]] = defaultdict(list)
    for use in uses:
        of_claims[use.share.of_claim].append(use)
    measured = {
        claim: found[0].share.part for claim, found in of_claims.items() if found[0].share.method in _MEASURED
    }
    consumed, others = sum(measured.values(), Fraction(0)), len(of_claims) - len(measured)
    parts: dict[FrameRow, Fraction] = defaultdict(Fraction)
    for claim, found in of_claims.items():
        if others and consumed >= 1:  # amounts that leave the others nothing: no part of them is known
            part = Fraction(1, len(of_claims))
        elif claim in measured:
            part = measured[claim] / max(consumed, Fraction(1))
        else:
            part = (1 - consumed) / others
        for use in found:
            parts[use.row] += part / len(found)
    return parts


class _Slice(NamedTuple):
    """A stretch of the node in which nothing changes: its divided devices, of one method."""

    start_ms: int
    end_ms: int
    resource: str
    units: int
    devices: Sequence[DividedTime]


def _slices(divided: Sequence[DividedTime]) -> Iterator[_Slice]:
    edges = sorted({edge for time in divided for edge in (time.start_ms, time.end_ms)})
    for start_ms, end_ms in pairwise(edges):
        by_method: dict[ShareMethod, list[DividedTime]] = defaultdict(list)
        for time in divided:
            if time.start_ms <= start_ms < time.end_ms:
                by_method[time.method].append(time)
        for method, now in sorted(by_method.items()):
            resource = str(next(iter(now[0].parts))[_RESOURCE])
            needed = lcm(*(part.denominator for time in now for part in time.parts.values()))
            units = max(needed, 2) if needed <= MOST_UNITS else FEWER_UNITS
            yield _Slice(start_ms, end_ms, shared_resource(resource, method), units, now)


def _parts(of: _Slice) -> Iterator[FrameRow]:
    units: Counter[FrameRow] = Counter()
    for time in of.devices:
        units.update(_whole_units(time.parts, of.units))
    for row, count in units.items():
        if count:
            yield _clipped(row, of.start_ms, of.end_ms, count, of.resource)


def _whole_units(parts: Mapping[FrameRow, Fraction], units: int) -> Mapping[FrameRow, int]:
    """Parts in units, which add up as the parts do: those that lose most by rounding down get one more."""
    counts = {row: int(part * units) for row, part in parts.items()}
    left = int(sum(parts.values()) * units) - sum(counts.values())
    by_loss = sorted(parts, key=lambda row: (counts[row] - parts[row] * units, str(row[_UID])))
    return {row: counts[row] + (row in by_loss[:left]) for row in parts}


def _capacity(
    place: tuple[object, ...], rows: Sequence[FrameRow], slices: Sequence[_Slice]
) -> Iterator[FrameRow]:
    """The node's rows of a resource, with units of their own for devices while they are divided."""
    edges = {int(str(edge)) for row in rows for edge in (row[_SINCE], row[_UNTIL])}
    edges |= {edge for each in slices for edge in (each.start_ms, each.end_ms)}
    for start_ms, end_ms in pairwise(sorted(edges)):
        now = [each for each in slices if each.start_ms <= start_ms < each.end_ms]
        taken = sum(len(each.devices) for each in now)
        known = [row for row in rows if int(str(row[_SINCE])) <= start_ms < int(str(row[_UNTIL]))]
        for row in known:
            gone = taken * _replicas(row)
            counts = [max(n - gone, 0) if n >= 0 else n for n in _counts(row)]
            yield _with_counts(row, start_ms, end_ms, counts)
        schedulable = known[0][-1] if known else 1
        for each in now:
            there = len(each.devices) * each.units
            counts = [there] * len(_COUNTS)
            yield (*place[:_OF_RESOURCE], each.resource, start_ms, end_ms, *counts, each.units, schedulable)


def _replicas(row: FrameRow) -> int:
    return max(1, int(str(row[_REPLICAS])))


def _units_of_one(rows: Iterable[FrameRow], at_ms: int) -> int:
    """How many units of the resource a device is: more than one where a node hands it out several times."""
    known = (_replicas(row) for row in rows if int(str(row[_SINCE])) <= at_ms < int(str(row[_UNTIL])))
    return next(known, 1)


def _counts(row: FrameRow) -> list[int]:
    return [int(str(row[at])) for at in _COUNTS]


def _with_counts(row: FrameRow, start_ms: int, end_ms: int, counts: Iterable[int]) -> FrameRow:
    return (*row[:_SINCE], start_ms, end_ms, *counts, *row[_REPLICAS:])


def _unknown(place: tuple[object, ...], divided: Collection[DividedTime]) -> Iterator[DataProblem]:
    cluster, node, resource = map(str, place)
    held_ms, since_ms = Counter[str](), dict[str, int]()
    for time in divided:
        if time.method is ShareMethod.UNKNOWN:
            pods = sorted({f"{row[_UID - 2]}/{row[_UID - 1]}" for row in time.parts})
            detail = (
                f"{resource} {time.device} was shared by {', '.join(pods)} in amounts of no known capacity: "
                "charged in equal parts"
            )
            held_ms[detail] += time.end_ms - time.start_ms
            since_ms[detail] = min(time.start_ms, since_ms.get(detail, time.start_ms))
    for detail, ms in held_ms.items():
        yield DataProblem(DataProblemCode.SHARE_UNKNOWN, cluster, node, detail, ms, since_ms[detail])
