"""From looks at the GPUs to counters: each look adds the time since the one before. Pure.

The driver's figures are of GPUs and MIG instances; the kubelet names their holders; ``accounts`` apportions
use to them. Seconds are GPU seconds: an instance of 3 of 7 slices counts 3/7.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple, TypeAlias

from gpucost.contract.gpu_metrics import AttributionMethod, GpuMeasure, HolderKind
from gpucost.domain.money import split_by_weight
from gpucost_gpu_exporter.metering.accounts import (
    UNALLOCATED,
    UNKNOWN,
    UNPARTITIONED,
    CounterRow,
    GpuAccounts,
    GpuProcess,
    GpuUser,
    GpuUserWeights,
    UserWeights,
    held_shares,
    process_weights,
    users,
)
from gpucost_gpu_exporter.metering.gpu_state import (
    DeviceState,
    GpuState,
    MeteredDevice,
    ProcessWeightSample,
)
from gpucost_gpu_exporter.metering.process_owners import ProcessOwner
from gpucost_gpu_exporter.model.holdings import SECOND_NS, DeviceHolding, DeviceKey
from gpucost_gpu_exporter.model.readings import (
    GpuReading,
    GpuSignal,
    NodeReading,
    ReadingPart,
    SignalActivity,
    SignalSource,
    XidEvent,
)

logger = logging.getLogger(__name__)

NVML = "nvml"
MEASURES: Mapping[GpuSignal, tuple[GpuMeasure, GpuMeasure]] = {
    GpuSignal.BUSY: (GpuMeasure.OBSERVED, GpuMeasure.BUSY),
    GpuSignal.SM: (GpuMeasure.SM_OBSERVED, GpuMeasure.SM_ACTIVE),
    GpuSignal.TENSOR: (GpuMeasure.TENSOR_OBSERVED, GpuMeasure.TENSOR_ACTIVE),
}
# Per-process samples come up to ten seconds late (NVIDIA/go-nvml#51), and not of all processes at once: what
# counts is the mean over this time, or over the part of it in which a holder had a process.
WEIGHTS_SPAN_NS = 10 * SECOND_NS
# Means are whole numbers, since fractions of many denominators are slow to calculate with.
PER_NS = 10**15
# What a signal may catch up on after an interruption: longer than any driver's buffer reaches back.
MAX_CREDIT_NS = 600 * SECOND_NS
# What is read after a longer pause goes to pods only if they held the GPU since before it; the current value
# of the second source says nothing about more; and a GPU is not counted as idle over it.
PAUSE_NS = 5 * SECOND_NS
# How far a signal may reach back beyond its look without being late.
JITTER_NS = 2 * SECOND_NS
NVML_SOURCES = (SignalSource.NVML_SAMPLES, SignalSource.NVML_UTILIZATION, SignalSource.GPM)
# dcgm-exporter shows an XID event up to 30 s late, and is read up to 60 s later.
XID_LATE_NS = 120 * SECOND_NS
# A GPU that vanished while no pod holds it is forgotten after this time.
FORGET_NS = 600 * SECOND_NS

# The holders of a device now: None when the kubelet gives no answer.
HoldingsOfDevice: TypeAlias = Callable[[DeviceKey], Sequence[DeviceHolding] | None]


@dataclass(frozen=True, slots=True)
class SecondSource:
    """The second source, dcgm-exporter, for what NVML lacks.

    ``ratio`` is the share of the time, 0 to 1, that a signal is active now, ``energy_mj`` a GPU's total since
    the driver was loaded; None where there is none, or only an old one. ``take_xids`` is how often each XID
    code of a GPU newly showed since it was asked last.
    """

    ratio: Callable[[DeviceKey, GpuSignal], float | None]
    energy_mj: Callable[[str], int | None]
    take_xids: Callable[[str], Mapping[int, int]]


NO_SECOND = SecondSource(lambda _device, _signal: None, lambda _uuid: None, lambda _uuid: {})


class GpuMeter:
    """Adds each look to the accounts. ``boards`` is the state of each GPU, by UUID."""

    def __init__(
        self, accounts: GpuAccounts, boards: dict[str, GpuState], last_ns: int | None = None
    ) -> None:
        self.accounts = accounts
        self.boards = boards
        self.last_ns = last_ns
        self.failures = 0
        """How often a GPU could not be counted because of an error in this program."""
        self.impossible_steps = 0
        """How many steps of energy were left out, since no GPU can use that much."""
        self._told_ns: dict[XidEvent, int] = {}

    def advance(
        self,
        now_ns: int,
        reading: NodeReading | None,
        held: HoldingsOfDevice,
        owner: Callable[[int], ProcessOwner],
        second: SecondSource,
        xids: Mapping[XidEvent, int],
    ) -> None:
        """Bring the counters up to ``now_ns``; ``held`` gives the holders since the last look.

        ``reading`` is None when the driver did not answer: held time is added, nothing is measured. ``xids``
        counts the events that the driver told since the last look, whether it answered or not.
        """
        self.accounts.xids.update(xids)
        self._told_ns |= dict.fromkeys(xids, now_ns)
        elapsed_ns = 0 if self.last_ns is None else max(0, now_ns - self.last_ns)
        self.last_ns = now_ns
        known = set(self.boards)
        found = {board.uuid: board for board in reading.boards} if reading else {}
        for uuid, board in found.items():
            state = self.boards.setdefault(uuid, GpuState(board, now_ns))
            state.lost = board.lost
            if not board.lost:
                state.answered(board, now_ns)
        self._count_second_xids(now_ns, second)
        for uuid, state in list(self.boards.items()):
            if uuid not in found:
                state.lost = state.lost or ("NO_DRIVER" if reading is None else "GONE")
            is_old = uuid not in found and now_ns - state.answered_ns > FORGET_NS
            # A lost GPU is called by its place until its UUID can be read.
            is_named_now = reading is not None and uuid not in found and ":" in uuid
            if is_named_now or (state.lost and is_old and _is_free(state, held)):
                del self.boards[uuid]
                continue
            look = _MeterReading(
                self.accounts, state, elapsed_ns if uuid in known else 0, now_ns, held, owner, second
            )
            try:
                look.add(found.get(uuid))
            except Exception:
                # The other GPUs are counted all the same.
                logger.exception("board %s could not be counted", uuid)
                self.failures += 1
            self.impossible_steps += look.impossible_steps

    def open(self, held: HoldingsOfDevice) -> None:
        """Let the counters of all current holders begin, at 0."""
        for state in self.boards.values():
            for device in state.layout():
                if state.device(device.key).method is AttributionMethod.NONE and not state.lost:
                    continue  # no look at it yet, or no signal: the next look decides the method
                shares = held_shares(held(device.key))
                rows = _rows(shares, device.key, state.device(device.key).method)
                self.accounts.add(device.key, GpuMeasure.HELD, 0, rows)

    def _count_second_xids(self, now_ns: int, second: SecondSource) -> None:
        """Count the events that the second source shows of GPUs of which the driver tells none; not what it
        shows late of an event that the driver told before it ceased to."""
        for uuid, state in self.boards.items():
            for code, count in second.take_xids(uuid).items():
                event = XidEvent(uuid, code)
                is_late = event in self._told_ns and now_ns - self._told_ns[event] <= XID_LATE_NS
                if ReadingPart.XID in state.seen.missing and not is_late:
                    self.accounts.xids[event] += count


class _Used(NamedTuple):
    """A device, its users, and for how long each signal was active in this look (GPU ns)."""

    device: MeteredDevice
    users: GpuUserWeights
    active_ns: Mapping[GpuSignal, int]


@dataclass(slots=True)
class _MeterReading:
    """One look at one GPU."""

    accounts: GpuAccounts
    state: GpuState
    elapsed_ns: int
    now_ns: int
    held: HoldingsOfDevice
    owner: Callable[[int], ProcessOwner]
    second: SecondSource
    impossible_steps: int = 0
    _shares: dict[DeviceKey, UserWeights] = field(default_factory=dict)

    def add(self, board: GpuReading | None) -> None:
        devices = list(self.state.layout())
        spans = self._spans(devices)
        used: list[_Used] = []
        for device, span_ns in zip(devices, spans, strict=False):
            use = self._users(device)
            active_ns = self._signals(device, use, span_ns)
            self._held(device, span_ns)
            used.append(_Used(device, use, active_ns))
        self._watch_idling(used)
        self._energy(board, used)
        if board is not None:
            self._events(board)

    def _spans(self, devices: Sequence[MeteredDevice]) -> list[int]:
        """The elapsed time apportioned to the devices by their part of the GPU; the rest is unpartitioned."""
        rest = self.state.unpartitioned()
        spans = split_by_weight(self.elapsed_ns, dict(enumerate((*(d.part for d in devices), rest))))
        if rest:
            board = DeviceKey(self.state.seen.uuid)
            row = CounterRow(UNPARTITIONED, board, AttributionMethod.EXACT)
            self.accounts.add(board, GpuMeasure.HELD, spans[len(devices)], {row: 1})
        return list(spans.values())

    def _held_shares(self, device: MeteredDevice) -> UserWeights:
        """The holders of a device with their shares; added up once in a look, for all that is
        apportioned by it."""
        if device.key not in self._shares:
            self._shares[device.key] = held_shares(self.held(device.key))
        return self._shares[device.key]

    def _users(self, device: MeteredDevice) -> GpuUserWeights:
        holdings, state = self.held(device.key), self.state.device(device.key)
        processes = self._processes(device)
        state.owners = dict(Counter(process.owner.kind.value for process in processes or ()))
        weights = process_weights(holdings, processes)
        return users(holdings, None if weights is None else self._means(device, weights))

    def _means(self, device: MeteredDevice, weights: Mapping[GpuUser, int]) -> dict[GpuUser, int]:
        """Mean weights over the last seconds, of each over those in which it had a process there."""
        state = self.state.device(device.key)
        if any(weights.values()):
            state.weighed.append(ProcessWeightSample(self.now_ns, max(1, self.elapsed_ns), weights))
        state.weighed = [look for look in state.weighed if self.now_ns - look.at_ns <= WEIGHTS_SPAN_NS]
        holders = self._held_shares(device)
        here = {who for look in state.weighed for who in look.weights if _is_here(who, holders)}
        means = dict.fromkeys(weights, 0)
        for who in here:
            looks = [look for look in state.weighed if who in look.weights]
            total = sum(look.weights[who] for look in looks)
            means[who] = total * PER_NS // sum(look.elapsed_ns for look in looks)
        return means

    def _processes(self, device: MeteredDevice) -> list[GpuProcess] | None:
        if device.reading is None or device.reading.processes is None:
            return None
        return [GpuProcess(self.owner(found.pid), found.sm_weight) for found in device.reading.processes]

    def _signals(self, device: MeteredDevice, use: GpuUserWeights, span_ns: int) -> dict[GpuSignal, int]:
        """Add what was observed and active; returns the active nanoseconds of each signal that there was."""
        state = self.state.device(device.key)
        active_ns: dict[GpuSignal, int] = {}
        for signal in GpuSignal:
            activity = self._activity(device, signal, state, span_ns)
            if activity is None:
                continue
            active_ns[signal] = activity.active_ns
            self._add_activity(device, signal, activity, use, span_ns)
        # A signal that the driver has, and that only brought nothing new yet, is a signal.
        is_due = device.reading is not None and GpuSignal.BUSY not in device.reading.missing
        has_signal = is_due or state.sources[GpuSignal.BUSY] != SignalSource.NONE
        state.method = use.method if has_signal else AttributionMethod.NONE
        return active_ns

    def _activity(
        self, device: MeteredDevice, signal: GpuSignal, state: DeviceState, span_ns: int
    ) -> SignalActivity | None:
        """What NVML, else the second source, observed, in GPU time; never more than the elapsed time."""
        credit = min(MAX_CREDIT_NS, state.credit_ns.get(signal, 0) + span_ns)
        state.credit_ns[signal] = credit
        found = device.reading.activity.get(signal) if device.reading else None
        if found is None and (device.reading is None or signal in device.reading.missing):
            ratio = self.second.ratio(device.key, signal)
            if ratio is None:
                state.sources[signal] = SignalSource.NONE
                return None
            recent_ns = min(self.elapsed_ns, PAUSE_NS)
            found = SignalActivity(recent_ns, int(recent_ns * ratio), SignalSource.DCGM)
        if found is None:
            return None
        state.sources[signal] = found.source
        observed_ns = min(found.observed_ns * device.part.numerator // device.part.denominator, credit)
        state.credit_ns[signal] = credit - observed_ns
        active_ns = found.active_ns * observed_ns // found.observed_ns if found.observed_ns else 0
        return SignalActivity(observed_ns, min(active_ns, observed_ns), found.source)

    def _add_activity(
        self,
        device: MeteredDevice,
        signal: GpuSignal,
        activity: SignalActivity,
        use: GpuUserWeights,
        span_ns: int,
    ) -> None:
        observed, active = MEASURES[signal]
        by_share = _rows(self._held_shares(device), device.key, use.method)
        by_use = _rows(use.weights, device.key, use.method)
        late_ns = activity.observed_ns - span_ns
        if late_ns > JITTER_NS and not self._is_held_since(self.now_ns - self.elapsed_ns - late_ns, [device]):
            # The driver caught up on a pause; the users of the GPU in it are not known.
            unknown = {CounterRow(UNKNOWN, device.key, AttributionMethod.NONE): 1}
            late_active_ns = activity.active_ns * late_ns // activity.observed_ns
            self.accounts.add(device.key, observed, late_ns, unknown)
            self.accounts.add(device.key, active, late_active_ns, unknown)
            activity = SignalActivity(span_ns, activity.active_ns - late_active_ns, activity.source)
        self.accounts.add(device.key, observed, activity.observed_ns, by_share)
        self.accounts.add(device.key, active, activity.active_ns, by_use)
        # A holder that did nothing was observed doing nothing: 0, not absent.
        for row in by_share:
            self.accounts.rows[row].setdefault(active, 0)

    def _is_held_since(self, since_ns: int, devices: Iterable[MeteredDevice]) -> bool:
        """Whether pods hold these devices, and all of them did at ``since_ns`` already."""
        pods = {held.pod for device in devices for held in self.held(device.key) or ()}
        lives = [self.accounts.pods.get(pod) for pod in pods]
        return bool(pods) and all(life and life.since_ns <= since_ns for life in lives)

    def _held(self, device: MeteredDevice, span_ns: int) -> None:
        if not self.elapsed_ns:
            return
        shares = self._held_shares(device)
        method = self.state.device(device.key).method
        self.accounts.add(device.key, GpuMeasure.HELD, span_ns, _rows(shares, device.key, method))

    def _watch_idling(self, used: Sequence[_Used]) -> None:
        """Note since when all of the GPU has been observed as idle, by the driver itself and
        without a pause."""
        is_watched = all(
            self.state.device(found.device.key).sources[GpuSignal.BUSY] in NVML_SOURCES for found in used
        )
        is_active = any(any(found.active_ns.values()) for found in used)
        is_broken = not used or not is_watched or is_active or self.elapsed_ns > PAUSE_NS or self.state.lost
        if self.state.quiet_ns is None or is_broken:
            self.state.quiet_ns = self.now_ns

    def _energy(self, board: GpuReading | None, used: Sequence[_Used]) -> None:
        total, source = (board.energy_mj, NVML) if board is not None else (None, NVML)
        if total is None:
            total, source = self.second.energy_mj(self.state.seen.uuid), SignalSource.DCGM
        if total is None:
            return
        is_known = self.state.energy_mj is not None and self.state.energy_source == source
        since_ns = self.state.energy_ns
        step = self.state.energy_step(total, source, self.now_ns)
        if step is None:
            self.impossible_steps += is_known
            return
        span_ns = self.state.energy_ns - since_ns
        is_idle = self.state.quiet_ns is not None and self.state.quiet_ns <= since_ns
        self.state.idle.learn(is_idle, span_ns, step)
        idle_mj = self.state.idle.of(span_ns, step)
        gpu, by_share, by_use = DeviceKey(self.state.seen.uuid), self._idle_rows(used), self._use_rows(used)
        if span_ns > PAUSE_NS and not self._is_held_since(since_ns, self.state.layout()):
            by_share = by_use = {CounterRow(UNKNOWN, gpu, AttributionMethod.NONE): 1}
        self.accounts.add(gpu, GpuMeasure.ENERGY, idle_mj, by_share)
        self.accounts.add(gpu, GpuMeasure.ENERGY, step - idle_mj, by_use or by_share)

    def _idle_rows(self, used: Sequence[_Used]) -> dict[CounterRow, int | Fraction]:
        """The energy that a GPU draws by being on, apportioned by the share held."""
        rows: dict[CounterRow, int | Fraction] = {}
        for device, use, _ in used:
            method = self._energy_method(use)
            for row, share in _rows(self._held_shares(device), device.key, method).items():
                rows[row] = device.part * share
        rest = self.state.unpartitioned()
        return (
            rows | {CounterRow(UNPARTITIONED, DeviceKey(self.state.seen.uuid), AttributionMethod.EXACT): rest}
            if rest
            else rows
        )

    def _use_rows(self, used: Sequence[_Used]) -> dict[CounterRow, int | Fraction]:
        """The energy that a GPU draws beyond that, apportioned by use: among MIG instances by activity and
        slices.

        By one signal for all of them: SM activity where each has it, else busy time.
        """
        rows: dict[CounterRow, int | Fraction] = {}
        is_alone = len(used) == 1 and not self.state.seen.mig
        signal = GpuSignal.SM if all(GpuSignal.SM in found.active_ns for found in used) else GpuSignal.BUSY
        for device, use, active_ns in used:
            whole = 1 if is_alone else active_ns.get(signal, 0)
            total = sum(use.weights.values())
            for row, weight in _rows(use.weights, device.key, self._energy_method(use)).items():
                if whole and weight:
                    rows[row] = whole * Fraction(weight) / total
        return rows

    def _energy_method(self, use: GpuUserWeights) -> AttributionMethod:
        # NVML counts the energy of GPUs only: an instance's part is an estimate.
        return AttributionMethod.WEIGHTED if self.state.seen.mig else use.method

    def _events(self, board: GpuReading) -> None:
        for reason, step in self.state.throttled_step(board.throttled_ns).items():
            place = board.uuid, reason
            self.accounts.throttled_ns[place] = self.accounts.throttled_ns.get(place, 0) + step


def _is_free(state: GpuState, held: HoldingsOfDevice) -> bool:
    holdings = [held(device.key) for device in state.layout()]
    return all(found is not None and not found for found in holdings)


def _rows(
    weights: UserWeights, device: DeviceKey, method: AttributionMethod
) -> dict[CounterRow, int | Fraction]:
    return {CounterRow(who, device, _method(who, method)): weight for who, weight in weights.items()}


def _method(who: GpuUser, method: AttributionMethod) -> AttributionMethod:
    """The method of a row. Rows without a pod keep one method, whatever happens beside them."""
    if who in (UNALLOCATED, UNPARTITIONED):
        return AttributionMethod.EXACT
    return (
        AttributionMethod.NONE if who.holder in (HolderKind.SHARED_OVERHEAD, HolderKind.UNKNOWN) else method
    )


def _is_here(who: GpuUser, holders: UserWeights) -> bool:
    return who.holder is not HolderKind.POD or who in holders
