"""Devices that several pods have at the same time: who pays which part of them, at every moment.

Pods request whole devices; ``gpucost_pod_gpu_claim_share`` names those of them that other pods may use as
well, and what part of such a device a pod's ResourceClaim has (``domain.gpu.ShareMethod``). ``divide`` takes
these devices out of the pods' rows and puts parts in their place:

- At every moment a device is divided among the claims that pods have then: by consumed capacity, or a
  scheduler's fraction, where it is known; those without amounts get equal parts of what these leave. A
  claim's part is divided equally among the pods that use it then. What no claim consumes is nobody's.
- Where the pods of a device come and go too often for that (MOST_PARTS), their times are rounded, and that is
  a problem: anybody may make thousands of pods with a claim that has no limit.
- A device that one pod has whole stays a whole unit of its resource.
- Parts are counted as units of a resource of their own (``gpu.nvidia.com.dra-capacity``), of which a device
  always has UNITS. So all that follows counts in whole numbers, and the parts of a device add up to it, or
  leave what is free; no pod that has a device has nothing of it.

Rows are those of frames.ALLOCATIONS and frames.CAPACITY. Parts depend on who has the device at a moment
alone, never on the window that is read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from math import isfinite
from typing import NamedTuple

from gpucost.contract.frames import ALLOCATIONS, CAPACITY
from gpucost.contract.metrics import POD_CLAIM_SHARE, POD_CLAIM_UNKNOWN
from gpucost.domain.errors import DataProblem, DataProblemCode
from gpucost.domain.gpu import ShareMethod, shared_resource
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Window, iso
from gpucost.telemetry.evidence.evidence_rule import ScrapeEvidence
from gpucost.telemetry.evidence.frame_rows import FrameRow
from gpucost.telemetry.prometheus.cluster_reader import ClusterReader, column, numbers
from gpucost.telemetry.prometheus.promql import by, over_time

UNITS = 100_800
"""Units of a divided device: halves to tenths are whole numbers of them, sevenths too, which MIG needs."""
_FINEST = 1_000_000
_LATEST_S = 4_102_444_800
"""The year 2100: a later start is nonsense."""
_MOST_NAMES = 6

MOST_PARTS = 100_000
"""Of one device in what is read at a time, a day at most: instants at which its pods change, times pods that
have it then. 200 pods that come and go once each have 40,000 at most."""
_STEPS_MS = (1, *(each * MINUTE_MS for each in (1, 5, 15, 60)))

_LABELS = ("pod_uid", "resource", "device", "claim", "method")
_CLUSTER, _NODE, _UID, _RESOURCE, _COUNT, _START, _END = (
    ALLOCATIONS.column_names.index(name)
    for name in ("cluster", "node", "pod_uid", "resource", "count", "start_ms", "end_ms")
)
_COUNTS = [CAPACITY.column_names.index(name) for name in ("expected", "capacity", "allocatable")]
_OF_RESOURCE, _SINCE, _UNTIL, _REPLICAS = (
    CAPACITY.column_names.index(name) for name in ("resource", "start_ms", "end_ms", "replicas")
)


class PodShare(NamedTuple):
    """A device of a pod: ``part`` of it is that of its claim."""

    device: str
    claim: str
    method: ShareMethod
    part: Fraction


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
    method: ShareMethod
    parts: Mapping[FrameRow, Fraction]

    @property
    def is_whole(self) -> bool:
        return len(self.parts) == 1 and set(self.parts.values()) == {Fraction(1)}


def read_shares(reader: ClusterReader, evidence: ScrapeEvidence) -> PodShares:
    """The devices of pods that others may use too; a part that is no part of 1 is taken for unknown. Of
    several parts that a pod is said to have of a device by one claim, the one that says most."""
    latest = over_time("last_over_time", reader.select(POD_CLAIM_SHARE.name), evidence.range_ms)
    result = reader.vector(by("max", _LABELS, latest), evidence.end_ms)
    found: dict[tuple[str, str], dict[tuple[str, str], PodShare]] = defaultdict(dict)
    labels = zip(*(column(result, label) for label in _LABELS), strict=True)
    for (uid, resource, device, claim, method), value in zip(labels, numbers(result), strict=True):
        share = PodShare(device, claim, *_part(method, value))
        of_pod = found[uid, resource]
        of_pod[device, claim] = max(share, of_pod.get((device, claim), share), key=_says)
    return {subject: list(shares.values()) for subject, shares in found.items()}


def unknown_claims(reader: ClusterReader, evidence: ScrapeEvidence) -> Iterator[DataProblem]:
    """Pods that use claims of which nobody knows what they gave. So there is no GPU time in the problem."""
    latest = over_time("last_over_time", reader.select(POD_CLAIM_UNKNOWN.name), evidence.range_ms)
    result = reader.vector(by("min", ("namespace", "pod", "claim"), latest), evidence.end_ms)
    names = zip(*(column(result, label) for label in ("namespace", "pod", "claim")), strict=True)
    for (namespace, pod, claim), since_s in zip(names, numbers(result), strict=True):
        since = f" since {iso(round(since_s * 1000))}" if 0 <= since_s < _LATEST_S else ""
        detail = (
            f"what ResourceClaim {claim} gave this pod, on its node{since}, is not known: if these were "
            "GPUs, they are charged to nobody, and how many is not known"
        )
        yield DataProblem(DataProblemCode.CLAIM_UNKNOWN, reader.cluster, f"{namespace}/{pod}", detail)


def _part(method: str, value: float) -> tuple[ShareMethod, Fraction]:
    if method not in set(ShareMethod) or not (isfinite(value) and 0 < value <= 1):
        return ShareMethod.UNKNOWN, Fraction(1)
    return ShareMethod(method), max(Fraction(value).limit_denominator(_FINEST), Fraction(1, _FINEST))


_MEASURED = (ShareMethod.CAPACITY, ShareMethod.FRACTION)
_SAYS_MOST = (*_MEASURED, ShareMethod.CLAIM, ShareMethod.TIME, ShareMethod.UNKNOWN)


def _says(share: PodShare) -> tuple[int, Fraction]:
    return -_SAYS_MOST.index(share.method), share.part


def divide(
    allocations: Sequence[FrameRow], capacity: Sequence[FrameRow], shares: PodShares
) -> tuple[list[FrameRow], list[FrameRow], list[DataProblem]]:
    """Both kinds of rows with the devices of ``shares`` divided among their pods, and problems: devices of
    which the parts are not known, each with its GPU time."""
    rows: list[FrameRow] = []
    uses: dict[_Place, dict[str, list[_Use]]] = defaultdict(lambda: defaultdict(list))
    for row in allocations:
        of_pod = shares.get((str(row[_UID]), str(row[_RESOURCE])), ())
        devices = {share.device for share in of_pod}
        rows += _counted(row, int(str(row[_COUNT])) - len(devices))
        for share in of_pod:
            uses[row[_CLUSTER], row[_NODE], row[_RESOURCE]][share.device].append(_Use(row, share))
    of_place: dict[_Place, list[FrameRow]] = defaultdict(list)
    for row in capacity:
        of_place[row[: _OF_RESOURCE + 1]].append(row)
    problems: list[DataProblem] = []
    for place, of_devices in uses.items():
        known, divided = of_place.get(place, []), list[DividedTime]()
        for device, found in sorted(of_devices.items()):
            step_ms = _step_ms(found)
            times = list(_times(found, step_ms))
            rows += _rows(times, known)
            problems += _unknown(place, device, times)
            problems += _rounded(place, device, found, step_ms)
            divided += [time for time in times if not time.is_whole]
        if divided:
            of_place[place] = list(_capacity(place, known, divided))
    return rows, [row for found in of_place.values() for row in found], problems


_Place = tuple[object, ...]
"""Cluster, node and resource."""


def _counted(row: FrameRow, count: int) -> list[FrameRow]:
    return [_clipped(row, row[_START], row[_END], count)] if count > 0 else []


def _clipped(
    row: FrameRow, start_ms: object, end_ms: object, count: int, resource: object = None
) -> FrameRow:
    return (*row[:_RESOURCE], resource or row[_RESOURCE], count, start_ms, end_ms)


def _rows(times: Sequence[DividedTime], known: Sequence[FrameRow]) -> Iterator[FrameRow]:
    """What rows have of one device: a row goes on for as long as its units are the same."""
    since: dict[FrameRow, int] = {}
    had: Mapping[FrameRow, tuple[int, object]] = {}
    until_ms = 0
    for time in times:
        now = _units(time, known)
        for row, units in had.items():
            if time.start_ms != until_ms or now.get(row) != units:
                yield _clipped(row, since.pop(row), until_ms, *units)
        for row in now:
            since.setdefault(row, time.start_ms)
        had, until_ms = now, time.end_ms
    for row, units in had.items():
        yield _clipped(row, since[row], until_ms, *units)


def _units(time: DividedTime, known: Sequence[FrameRow]) -> Mapping[FrameRow, tuple[int, object]]:
    """Units and resource by row."""
    if time.is_whole:
        return {row: (_units_of_one(known, time.start_ms), row[_RESOURCE]) for row in time.parts}
    return {
        row: (count, shared_resource(str(row[_RESOURCE]), time.method))
        for row, count in _whole_units(time.parts).items()
    }


def _whole_units(parts: Mapping[FrameRow, Fraction]) -> Mapping[FrameRow, int]:
    """Parts in units, at least one each, which add up as the parts do: those that lose most by rounding down
    get one more, those that have most give what was given to the smallest."""
    counts = {row: max(1, int(part * UNITS)) for row, part in parts.items()}
    left = round(sum(parts.values()) * UNITS) - sum(counts.values())
    by_loss = sorted(parts, key=lambda row: (counts[row] - parts[row] * UNITS, str(row[_UID])))
    for row in by_loss[: max(left, 0)]:
        counts[row] += 1
    while left < 0:
        most = max(counts, key=lambda row: (counts[row], str(row[_UID])))
        given = min(-left, counts[most] // 2)
        counts[most] -= given
        left += given
    return counts


def _spans(uses: Sequence[_Use], step_ms: int) -> list[tuple[int, int]]:
    """Start and end of each, in whole steps: from no later and to no earlier than they are, but not beyond
    the device's own time."""
    real = [(int(str(use.row[_START])), int(str(use.row[_END]))) for use in uses]
    first, last = min(start for start, _ in real), max(end for _, end in real)
    return [
        (max(start // step_ms * step_ms, first), min(-(-end // step_ms) * step_ms, last))
        for start, end in real
    ]


def _step_ms(uses: Sequence[_Use]) -> int:
    """1, or longer where so many pods have the device so briefly that their parts at every instant would be
    too many."""
    for step_ms in _STEPS_MS:
        changes: Counter[int] = Counter()
        for start, end in _spans(uses, step_ms):
            changes[start] += 1
            changes[end] -= 1
        if sum(accumulate(changes[at] for at in sorted(changes))) <= MOST_PARTS:
            return step_ms
    return _STEPS_MS[-1]


def _times(uses: Sequence[_Use], step_ms: int = 1) -> Iterator[DividedTime]:
    """The device's time in stretches in which the same rows have it."""
    begins: dict[int, list[_Use]] = defaultdict(list)
    ends: dict[int, list[_Use]] = defaultdict(list)
    for use, (start, end) in zip(uses, _spans(uses, step_ms), strict=True):
        begins[start].append(use)
        ends[end].append(use)
    now: dict[_Use, None] = {}
    for start_ms, end_ms in pairwise(sorted(begins.keys() | ends.keys())):
        for use in ends.get(start_ms, ()):
            now.pop(use, None)
        now |= dict.fromkeys(begins.get(start_ms, ()))
        if now:
            yield DividedTime(start_ms, end_ms, *_among(now))


_TOLD_FIRST = (ShareMethod.UNKNOWN, *_MEASURED, ShareMethod.TIME, ShareMethod.CLAIM)


def _among(uses: Iterable[_Use]) -> tuple[ShareMethod, Mapping[FrameRow, Fraction]]:
    """The part of each row, by which method; together 1, or less where amounts leave some of the device.

    Amounts that come to more than the device, or leave nothing to those without any, are none that can be
    right: all have something then, and none more than its amount says. The method is then UNKNOWN."""
    of_claims: dict[str, list[_Use]] = defaultdict(list)
    for use in uses:
        of_claims[use.share.claim].append(use)
    measured = {
        claim: found[0].share.part for claim, found in of_claims.items() if found[0].share.method in _MEASURED
    }
    consumed, others = sum(measured.values(), Fraction(0)), len(of_claims) - len(measured)
    # Parts are as exact as Prometheus has them: those of odd amounts that fill a device are not quite 1.
    is_full = abs(consumed - 1) <= Fraction(len(measured), _FINEST)
    is_odd = others > 0 if is_full else consumed > 1
    rest = Fraction(others, len(of_claims)) if is_odd else Fraction(0) if is_full else 1 - consumed
    scale = (1 - rest) / consumed if is_odd or is_full else Fraction(1)
    parts: dict[FrameRow, Fraction] = defaultdict(Fraction)
    for claim, found in of_claims.items():
        part = measured[claim] * scale if claim in measured else rest / others
        for use in found:
            parts[use.row] += part / len(found)
    methods = {found[0].share.method for found in of_claims.values()}
    told = next(each for each in _TOLD_FIRST if each in methods)
    return ShareMethod.UNKNOWN if is_odd else told, parts


def _capacity(place: _Place, rows: Sequence[FrameRow], divided: Sequence[DividedTime]) -> Iterator[FrameRow]:
    """The node's rows of a resource, with units of their own for devices while they are divided: of those
    that the node has. What pods hold of others is beyond what there is."""
    changes: dict[int, Counter[ShareMethod]] = defaultdict(Counter)
    for time in divided:
        changes[time.start_ms][time.method] += 1
        changes[time.end_ms][time.method] -= 1
    edges = {int(str(edge)) for row in rows for edge in (row[_SINCE], row[_UNTIL])} | changes.keys()
    now: Counter[ShareMethod] = Counter()
    for start_ms, end_ms in pairwise(sorted(edges)):
        now.update(changes.get(start_ms, {}))
        taken = [(method, n) for method, n in sorted(now.items()) if n]
        known = [row for row in rows if int(str(row[_SINCE])) <= start_ms < int(str(row[_UNTIL]))]
        for row in known:
            yield from _split(row, start_ms, end_ms, taken)
        for method, n in taken if not rows else ():
            resource, counts = shared_resource(str(place[-1]), method), [n * UNITS] * len(_COUNTS)
            yield (*place[:-1], resource, start_ms, end_ms, *counts, UNITS, 1)


def _split(
    row: FrameRow, start_ms: int, end_ms: int, taken: Sequence[tuple[ShareMethod, int]]
) -> Iterator[FrameRow]:
    """A row of a node's capacity, less the devices that are divided, and one for the parts of these."""
    replicas = _replicas(row)
    left = [int(str(row[at])) for at in _COUNTS]
    for method, devices in taken:
        there = [min(devices, n // replicas) if n >= 0 else -1 for n in left]
        left = [n - max(each, 0) * replicas for n, each in zip(left, there, strict=True)]
        resource = shared_resource(str(row[_OF_RESOURCE]), method)
        counts = (each * UNITS if each >= 0 else -1 for each in there)
        yield (*row[:_OF_RESOURCE], resource, start_ms, end_ms, *counts, UNITS, *row[_REPLICAS + 1 :])
    yield (*row[:_SINCE], start_ms, end_ms, *left, *row[_REPLICAS:])


def _replicas(row: FrameRow) -> int:
    return max(1, int(str(row[_REPLICAS])))


def _units_of_one(rows: Iterable[FrameRow], at_ms: int) -> int:
    """How many units of the resource a device is: more than one where a node hands it out several times."""
    known = (_replicas(row) for row in rows if int(str(row[_SINCE])) <= at_ms < int(str(row[_UNTIL])))
    return next(known, 1)


def _unknown(place: _Place, device: str, times: Iterable[DividedTime]) -> Iterator[DataProblem]:
    """One for each hour of UTC and the pods of that hour, so that each window has its own, however many are
    read at once."""
    cluster, node, resource = map(str, place)
    by_hour: dict[int, list[tuple[Window, DividedTime]]] = defaultdict(list)
    for time in times:
        if time.method is ShareMethod.UNKNOWN:
            for part in Window(time.start_ms, time.end_ms).split(HOUR_MS):
                by_hour[part.start_ms // HOUR_MS].append((part, time))
    for parts in by_hour.values():
        pods = sorted({f"{row[_UID - 2]}/{row[_UID - 1]}" for _, time in parts for row in time.parts})
        more = f" and {len(pods) - _MOST_NAMES} more" if len(pods) > _MOST_NAMES else ""
        detail = (
            f"{resource} {device} was held by {', '.join(pods[:_MOST_NAMES])}{more} in parts that are not "
            "known, or come to more than it: charged as far as they are, and else in equal parts"
        )
        held_ms, at_ms = sum(part.length_ms for part, _ in parts), parts[0][0].start_ms
        yield DataProblem(DataProblemCode.SHARE_UNKNOWN, cluster, node, detail, held_ms, at_ms)


def _rounded(place: _Place, device: str, uses: Sequence[_Use], step_ms: int) -> Iterator[DataProblem]:
    """That the times of its pods were rounded, with all of the device's time: a pod may have been charged for
    a step more, and the others for as much less.

    Of no instant, since the step is that of all pods that are read at once: so windows are read alone."""
    if step_ms > 1:
        cluster, node, resource = map(str, place)
        pods = len({use.row[_UID] for use in uses})
        detail = (
            f"{resource} {device} was held by {pods} pods, too many and too briefly to divide it at every "
            f"moment: their times are rounded to {step_ms // MINUTE_MS} min"
        )
        spans = _spans(uses, 1)
        first, last = min(start for start, _ in spans), max(end for _, end in spans)
        yield DataProblem(DataProblemCode.SHARE_UNKNOWN, cluster, node, detail, last - first)
