"""Claims on devices: which part of which device each pod held, step by step, and the readings cut to it.

A row names a device and a pod; who held what, from when to when, and among how many holders a device was
divided, is known from Kubernetes. Labels stay longer than the allocation (the kubelet goes on naming pods
that have ended), so readings count for no more than the time held.

Some steps are read sample by sample (``recut``). The kubelet may name a pod long after it ended, and a name
may be used again (as a StatefulSet does) within one step; then the mean of the row is not its pod's. Samples
are assigned by when each pod held its units. These steps are few; where there are too many, the reading is
divided among the pods by the time they held.

Devices that several pods share are never split correctly by dcgm-exporter. What its rows mean follows from
the rows themselves. With ``vgpu`` (its virtual-GPU flag), or with rows of several pods at the same time, they
are copies of the device's value, one for each holder. Where the device has a row of its own beside those of
pods (busy time and memory from release 4.8.2 on), theirs are the pods' own values. Else one arbitrary pod has
the whole device to its name, and the use of each pod is unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain, pairwise

import numpy as np

from gpucost.domain.errors import InputError
from gpucost.domain.gpu import WHOLE, mig_share, parse_product
from gpucost.domain.time import MINUTE_MS, Window
from gpucost.telemetry.evidence.evidence_rule import BoolArray, IntArray
from gpucost.telemetry.evidence.gauge_runs import Floats
from gpucost.telemetry.prometheus.cluster_reader import points
from gpucost.telemetry.prometheus.query_response import needed
from gpucost.telemetry.upstream.dcgm_series import DcgmReader, DeviceReading
from gpucost.telemetry.upstream.device_subjects import (
    ClusterHoldings,
    DcgmDevice,
    DeviceSubject,
    PodHolding,
    SeriesOrigin,
    SeriesSubjects,
)
from gpucost.telemetry.upstream.kube_reader import UpstreamSettings

_MIG = "nvidia.com/mig-"
DeviceClaimKey = tuple[DcgmDevice, str]
"""A device, and the uid of a pod that held it or a part of it."""


@dataclass(frozen=True)
class PodDeviceClaim:
    """The part of one device that one pod held. ``share`` is the device's part of a GPU; the device is handed
    out to ``replicas`` holders, of which the pod may be ``count``. ``held`` is the time held in each step, in
    ms; ``stretches`` the same as intervals."""

    node: str
    share: float
    replicas: int
    count: int
    held: Floats
    stretches: Sequence[tuple[int, int]]


@dataclass(frozen=True)
class ClaimReadings:
    """One field by claim and step: device milliseconds observed, amount in the base unit times ms, peak, and
    how many copies (replicas of a shared device) of it the pod had."""

    observed: Floats
    amount: Floats
    peak: Floats
    copies: Floats


class DeviceClaims:
    """The claims of all ``keys``, and readings by claim."""

    def __init__(
        self,
        keys: Iterable[DeviceSubject],
        subjects: SeriesSubjects,
        holdings: ClusterHoldings,
        settings: UpstreamSettings,
        steps: Sequence[Window],
    ) -> None:
        products = subjects.products
        self._steps = steps
        self._edges = np.array([(each.start_ms, each.end_ms) for each in steps], dtype=np.float64).T
        self.unknown: set[DcgmDevice] = set()
        """Devices whose share of a GPU is unknown."""
        self.of: dict[DeviceClaimKey, PodDeviceClaim] = {}
        whole = Window(steps[0].start_ms, steps[-1].end_ms)
        shares: dict[DcgmDevice, float | None] = {}
        for key in keys:
            if key.device not in shares:
                parts = subjects.parts(key.device)
                share = 1 / parts if parts else _share(*products[key.device], settings)
                shares[key.device] = share
            share = shares[key.device]
            if share is None:
                self.unknown.add(key.device)
                continue
            for uid in key.uids:
                if (key.device, uid) not in self.of:
                    holds = _fitting(key.device, products, holdings.of_uid(uid, whole))
                    if holds:
                        self.of[key.device, uid] = self._claimed(holds, share)
        self.at = {claim: row for row, claim in enumerate(self.of)}
        self._rows: dict[DeviceSubject, Sequence[int]] = {}
        self.held = self._grid(each.held for each in self.of.values())
        self.caps = self._caps(holdings, settings, whole)

    def of_reading(self, reading: DeviceReading) -> ClaimReadings:
        """Readings cut to the time held. A reading of several pods of one name is divided by the time that
        each held."""
        shape = self.held.shape
        whose, rows = self.rows_of(reading)
        held, seen = self.held[rows], reading.observed[whose]
        among = np.zeros(reading.observed.shape)
        np.add.at(among, whose, held)
        observed = np.minimum(seen * held / np.maximum(among[whose], 1.0), held)
        total, amount, longest = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        peak = np.full(shape, np.nan)
        np.add.at(total, rows, observed)
        np.add.at(amount, rows, reading.amount[whose] * observed / np.maximum(seen, 1e-9))
        np.maximum.at(longest, rows, observed)
        np.fmax.at(peak, rows, np.where(observed > 0, reading.peak[whose], np.nan))
        # Rows with copy numbers are of the same time; others follow one another.
        virtual = np.zeros((len(self.held), 1), dtype=bool)
        is_copy = np.array([bool(key.vgpu) for key in reading.keys], dtype=bool)
        virtual[rows[is_copy[whose]]] = True
        time = np.where(virtual, longest, np.minimum(total, self.held))
        copies = np.where(virtual, total / np.maximum(longest, 1e-9), total > 0)
        return ClaimReadings(time, amount * time / np.maximum(total, 1e-9), peak, copies)

    def rows_of(self, reading: DeviceReading) -> tuple[IntArray, IntArray]:
        """Rows of ``reading`` and the claims that they belong to, pair by pair."""
        known = self._rows
        for key in reading.keys.keys() - known.keys():
            claims = ((key.device, uid) for uid in key.uids)
            known[key] = [self.at[each] for each in claims if each in self.at]
        found = [known[key] for key in reading.keys]
        whose = np.repeat([*reading.keys.values()], [*map(len, found)]).astype(np.int64)
        return whose, np.fromiter(chain.from_iterable(found), dtype=np.int64, count=len(whose))

    def _claimed(self, holds: Sequence[PodHolding], share: float) -> PodDeviceClaim:
        stretches = _joined((hold.start_ms, hold.end_ms) for hold in holds)
        held = np.zeros(len(self._steps))
        for stretch in stretches:
            held += self._overlap(*stretch)
        replicas = max(hold.replicas for hold in holds)
        count = max(hold.count for hold in holds)
        return PodDeviceClaim(holds[-1].node, share, replicas, count, held, stretches)

    def _overlap(self, start_ms: int, end_ms: int) -> Floats:
        starts, ends = self._edges
        found: Floats = np.maximum(np.minimum(ends, end_ms) - np.maximum(starts, start_ms), 0.0)
        return found

    def _caps(
        self, holdings: ClusterHoldings, settings: UpstreamSettings, whole: Window
    ) -> Mapping[str, Floats]:
        """By pod, the GPU time of all its units in each step."""
        shares: dict[str, float] = {}
        for (_, uid), claimed in self.of.items():
            shares[uid] = max(shares.get(uid, 0.0), claimed.share)
        caps: dict[str, Floats] = {}
        for uid, share in shares.items():
            cap = np.zeros(len(self._steps))
            for hold in holdings.of_uid(uid, whole):
                unit = float(settings.catalog.shares.get(hold.resource, WHOLE)) * share
                cap += self._overlap(hold.start_ms, hold.end_ms) * hold.count * unit / hold.replicas
            caps[uid] = cap
        return caps

    def _grid(self, rows: Iterable[Floats]) -> Floats:
        return np.array([*rows], dtype=np.float64).reshape(-1, len(self._steps))


def _share(model: str, profile: str, settings: UpstreamSettings) -> float | None:
    """The share of a GPU that a device is; None for a MIG instance of an unknown profile."""
    if not profile or profile.startswith("<<<"):
        return 1.0
    try:
        return float(mig_share(parse_product(model).model, profile, settings.basis))
    except InputError:
        return None


def _fitting(
    device: DcgmDevice, products: Mapping[DcgmDevice, tuple[str, str]], holds: Sequence[PodHolding]
) -> Sequence[PodHolding]:
    """Of a pod's allocations, those of which the device can be one unit; all of them where none fits."""
    profile = products[device][1].replace("+", ".")
    wanted = [hold for hold in holds if hold.resource.startswith(_MIG) == bool(device[1])]
    exact = [hold for hold in wanted if profile and hold.resource.startswith(f"{_MIG}{profile}")]
    return exact or wanted or holds


def _joined(stretches: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for start, end in sorted(stretches):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


_MOST_CELLS = 5_000
_LINGER_MS = MINUTE_MS
"""How long labels usually stay: until the exporter asks the kubelet again, and is scraped."""
_Sums = dict[tuple[DeviceSubject, str], dict[SeriesOrigin, tuple[float, float, float]]]


def recut(
    read: DcgmReader, names: Sequence[str], reading: DeviceReading, claims: DeviceClaims
) -> DeviceReading:
    """``reading``, with the steps that were read sample by sample under keys of their own, one for each
    pod."""
    cells = _cells(reading, claims, 2 * read.interval_ms + _LINGER_MS)
    if not names or not cells or sum(map(len, cells.values())) > _MOST_CELLS:
        return reading
    keys = dict(reading.keys)
    found: dict[tuple[DeviceSubject, int], tuple[float, float, float]] = {}
    grids = [reading.observed.copy(), reading.amount.copy(), reading.peak.copy()]
    for at, wanted in cells.items():
        for key in wanted:
            for grid, nothing in zip(grids, (0.0, 0.0, np.nan), strict=True):
                grid[keys[key], at] = nothing
        for (key, uid), sums in _read(read, names, read.steps[at], wanted, claims).items():
            own = DeviceSubject(key.device, (uid,), key.vgpu)
            found[own, keys.setdefault(own, len(keys)) * len(read.steps) + at] = max(sums.values())
    more = len(keys) - len(reading.keys)
    grids = [
        np.vstack([grid, np.full((more, len(read.steps)), nothing)])
        for grid, nothing in zip(grids, (0.0, 0.0, np.nan), strict=True)
    ]
    for (_, place), values in found.items():
        for grid, value in zip(grids, values, strict=True):
            grid[divmod(place, len(read.steps))] = value
    return DeviceReading(keys, *grids)


def _cells(reading: DeviceReading, claims: DeviceClaims, slack_ms: float) -> Mapping[int, set[DeviceSubject]]:
    """By step, the keys whose mean is not that of one pod."""
    cells: dict[int, set[DeviceSubject]] = defaultdict(set)
    whose, rows = claims.rows_of(reading)
    seen = reading.observed
    total, holders = np.zeros(seen.shape), np.zeros(seen.shape)
    np.add.at(total, whose, claims.held[rows])
    np.add.at(holders, whose, claims.held[rows] > 0)
    outlived = (seen > total + slack_ms) & (total > 0)
    keys = [*reading.keys]
    for row, at in np.argwhere(outlived | ((holders > 1) & (seen > 0))).tolist():
        cells[at].add(keys[row])
    return cells


def _read(
    read: DcgmReader, names: Sequence[str], step: Window, wanted: set[DeviceSubject], claims: DeviceClaims
) -> Mapping[tuple[DeviceSubject, str], Mapping[SeriesOrigin, tuple[float, float, float]]]:
    """Time observed, amount and peak in ``step`` of each key and pod, by source."""
    sums: _Sums = defaultdict(dict)
    subjects = read.subjects
    uuids = {subjects.keys[key.device] for key in wanted}
    for each in read.reader.raw_where(list(names), subjects.dialect.keys, uuids, step.start_ms, step.end_ms):
        labels, name = each["metric"], needed(each, "__name__", names)
        key = subjects.of(labels) if subjects.is_measured(name, labels) else None
        scale, interval = read.known_scale(name, labels), read.known_interval(labels)
        if key not in wanted or key is None or scale is None:
            continue
        times, values = (np.array(column, dtype=np.float64) for column in points(each))
        inside = (times > step.start_ms) & (times <= step.end_ms) & (values <= scale.highest)
        for uid in key.uids:
            if (key.device, uid) not in claims.of:
                continue
            own = values[inside & _during(times, claims.of[key.device, uid].stretches)] / scale.per
            if len(own):
                source = subjects.source(name, labels)
                before = sums[key, uid].get(source, (0.0, 0.0, 0.0))
                sums[key, uid][source] = (
                    before[0] + len(own) * interval,
                    before[1] + float(own.sum()) * interval,
                    max(before[2], float(own.max())),
                )
    return sums


def _during(times: Floats, stretches: Sequence[tuple[int, int]]) -> BoolArray:
    found: BoolArray = np.zeros(len(times), dtype=np.bool_)
    for start, end in stretches:
        found |= (times > start) & (times <= end)
    return found


_ROUNDING = 1e-6


class SharedRowKind(Enum):
    """What the rows of pods on a shared device mean."""

    COPIES = "copies"
    ARBITRARY = "arbitrary"


def kinds_of(
    claims: DeviceClaims, readings: Sequence[DeviceReading], length_ms: int, slack_ms: float
) -> dict[DcgmDevice, SharedRowKind]:
    """The kind of rows of each shared device."""
    shared = {device for (device, _), claimed in claims.of.items() if claimed.replicas > 1}
    kinds: dict[DcgmDevice, SharedRowKind] = {}
    for reading in readings:
        seen: dict[DcgmDevice, Floats] = {}
        for key, row in reading.keys.items():
            if key.vgpu:
                kinds[key.device] = SharedRowKind.COPIES
            elif key.device in shared and key.uids:
                seen[key.device] = seen.get(key.device, 0.0) + reading.observed[row]
        for device, total in seen.items():
            if (total > length_ms + 2 * slack_ms).any():
                kinds[device] = SharedRowKind.COPIES
    return {device: kinds.get(device, SharedRowKind.ARBITRARY) for device in shared | kinds.keys()}


def of_devices(
    reading: DeviceReading, wanted: Collection[DcgmDevice], slack_ms: float, length_ms: int
) -> dict[DcgmDevice, tuple[Floats, Floats]]:
    """Time observed and amount of those of ``wanted`` that have a row of their own beside those of pods."""
    own: dict[DcgmDevice, tuple[Floats, Floats]] = {}
    pods: dict[DcgmDevice, Floats] = {}
    keys = [each for each in reading.keys.items() if each[0].device in wanted]
    named = {key.device for key, _ in keys if key.uids}
    both = named & {key.device for key, _ in keys if not key.uids}
    for key, row in keys:
        if key.device not in both:
            continue
        if key.uids:
            seen = reading.observed[row]
            pods[key.device] = np.maximum(pods[key.device], seen) if key.device in pods else seen
        else:
            before = own.get(key.device, (0.0, 0.0))
            own[key.device] = before[0] + reading.observed[row], before[1] + reading.amount[row]
    return {
        device: found
        for device, found in own.items()
        if (found[0] + pods[device] > length_ms + 2 * slack_ms).any()
    }


@dataclass(frozen=True, slots=True)
class DeviceSharer:
    """A pod that shares a device: its reading of the device, and its part of it."""

    claimed: PodDeviceClaim
    row: int
    parts: Floats


def split(
    used: ClaimReadings, members: Sequence[DeviceSharer], steps: Sequence[Window]
) -> tuple[Floats, Floats]:
    """For copies of a device's value, the part of each of ``members``: in proportion to what each held of the
    device, among those who held it at the same time. The parts add up to the device's value. Also returned:
    how much of each part is of time with other holders, so that it may be theirs."""
    found = np.zeros((len(members), len(steps)))
    unsure = np.zeros(found.shape)
    rows = [member.row for member in members]
    for at in np.flatnonzero((used.observed[rows] > 0).any(axis=0)).tolist():
        present = [n for n, row in enumerate(rows) if used.observed[row, at] > 0]
        if len(present) == 1:
            found[present[0], at] = used.amount[rows[present[0]], at]
            continue
        parts = _split_step(used, [members[n] for n in present], steps[at], at)
        found[present, at], unsure[present, at] = parts
    return found, unsure


def _split_step(
    used: ClaimReadings, members: Sequence[DeviceSharer], step: Window, at: int
) -> tuple[list[float], list[float]]:
    """The step is cut where any member begins or ends. All see the same device, so the member with the least
    observed time gives the value of its stretches, and each further member the value of what is left of its
    own."""
    inside = [
        [(max(a, step.start_ms), min(b, step.end_ms)) for a, b in member.claimed.stretches]
        for member in members
    ]
    cuts = sorted({edge for each in inside for a, b in each if a < b for edge in (a, b)})
    stretches = [*pairwise(cuts)]
    there = [[any(a <= low and high <= b for a, b in each) for low, high in stretches] for each in inside]
    held = [
        sum(high - low for (low, high), is_there in zip(stretches, own, strict=True) if is_there)
        for own in there
    ]
    seen = [float(used.observed[member.row, at]) for member in members]
    amounts = [float(used.amount[member.row, at]) for member in members]
    rates: dict[int, float] = {}
    for n in sorted(range(len(members)), key=lambda each: held[each]):
        own = [k for k, is_there in enumerate(there[n]) if is_there]
        whole = amounts[n] * held[n] / seen[n]
        told = sum(rates[k] * (stretches[k][1] - stretches[k][0]) for k in own if k in rates)
        left = sum(stretches[k][1] - stretches[k][0] for k in own if k not in rates)
        rates.update(dict.fromkeys((k for k in own if k not in rates), max(0.0, whole - told) / max(left, 1)))
    found, unsure = [0.0] * len(members), [0.0] * len(members)
    for k, (low, high) in enumerate(stretches):
        among = sum(float(m.parts[at]) for n, m in enumerate(members) if there[n][k])
        for n, member in enumerate(members):
            if there[n][k]:
                part = rates[k] * (high - low) * float(member.parts[at]) / among
                part *= seen[n] / max(held[n], 1)
                found[n] += part
                unsure[n] += part if float(member.parts[at]) < among else 0.0
    return found, unsure


def limited(used: ClaimReadings, rows: Sequence[int], device: tuple[Floats, Floats]) -> Floats:
    """The pods' own values, reduced where together they exceed the device's."""
    total = used.amount[rows].sum(axis=0)
    fits = np.where(total > device[1], device[1] / np.maximum(total, 1e-9), 1.0)
    found: Floats = used.amount[rows] * fits
    return found


@dataclass(frozen=True, slots=True)
class DeviceEnergy:
    """Per claim and step: energy of the whole GPU and the time for which it was observed, the claim's part of
    the GPU, the GPU time that it kept busy (NaN where unknown), and its held time."""

    energy: Floats
    observed: Floats
    parts: Floats
    busy: Floats
    held: Floats


def misplaced_ms(boards: Sequence[str], drawn: DeviceEnergy) -> float:
    """The most energy that may be another pod's because GPUs are split in proportion to what was held, as
    time of such a GPU at its mean power.

    The power of a GPU at rest is rightly split by what was held, the power of work by who worked. The two
    parts are unknown, so the true split is between the one and the other.
    """
    is_cut = (drawn.energy > 0) & (drawn.parts > 0) & (drawn.parts < 1 - _ROUNDING)
    energy, found = np.where(is_cut, drawn.energy, 0.0), 0.0
    if not is_cut.any():
        return 0.0
    for board in sorted({boards[row] for row in np.flatnonzero(is_cut.any(axis=1)).tolist()}):
        rows = [row for row, each in enumerate(boards) if each == board]
        found += float(_misplaced(*(each[rows] for each in (energy, drawn.parts, drawn.busy, drawn.held))))
    return found * float(np.sum(drawn.observed[is_cut])) / float(energy.sum())


def _misplaced(energy: Floats, parts: Floats, busy: Floats, held: Floats) -> float:
    """Of one GPU, in the unit of ``energy``."""
    there = energy > 0
    worked = np.where(there, busy, 0.0)
    total = np.nansum(worked, axis=0)
    used = np.where(total > 0, worked / np.maximum(total, 1e-9), parts)
    off = np.where(there, (used - parts) * energy, 0.0)
    apart = np.maximum(np.maximum(off, 0.0).sum(axis=0), np.maximum(-off, 0.0).sum(axis=0))
    smallest = np.where(there, parts, 1.0).min(axis=0)
    most = energy.max(axis=0) * np.maximum(1.0 - smallest, np.where(there, parts, 0.0).sum(axis=0))
    # Pods that held the GPU at different times of a step did not share its energy.
    together = np.where(there, held, 0.0).max(axis=0) == np.where(there, held, np.inf).min(axis=0)
    known = together & ~np.isnan(worked).any(axis=0)
    return float(np.where(there.any(axis=0), np.where(known, apart, most), 0.0).sum())
