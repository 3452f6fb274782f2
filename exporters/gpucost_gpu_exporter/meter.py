"""From looks at the GPUs to counters: each look adds the time since the one before. Pure.

The driver's figures are of boards and MIG instances; the kubelet says who holds them; ``split`` says who
used them. Seconds are board seconds: an instance of 3 of 7 slices counts 3/7.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple, TypeAlias

from gpucost.contract.gpu_metrics import Holder, Measure, Method
from gpucost.domain.money import split_by_weight
from gpucost_gpu_exporter.accounts import Accounts, Row
from gpucost_gpu_exporter.boards import BoardState, Device, DeviceState, Weighed
from gpucost_gpu_exporter.holdings import DeviceKey, Holding
from gpucost_gpu_exporter.processes import Owner
from gpucost_gpu_exporter.quantities import SECOND_NS
from gpucost_gpu_exporter.readings import Activity, BoardReading, NodeReading, Signal, Source
from gpucost_gpu_exporter.split import (
    UNALLOCATED,
    UNKNOWN,
    UNPARTITIONED,
    Process,
    Users,
    Weights,
    Who,
    held_shares,
    process_weights,
    users,
)

logger = logging.getLogger(__name__)

NVML = "nvml"
MEASURES: Mapping[Signal, tuple[Measure, Measure]] = {
    Signal.BUSY: (Measure.OBSERVED, Measure.BUSY),
    Signal.SM: (Measure.SM_OBSERVED, Measure.SM_ACTIVE),
    Signal.TENSOR: (Measure.TENSOR_OBSERVED, Measure.TENSOR_ACTIVE),
}
# Per-process samples come up to ten seconds late (NVIDIA/go-nvml#51), and not of all processes at once: what
# counts is the mean over this time, or over the part of it in which a holder had a process.
WEIGHTS_SPAN_NS = 10 * SECOND_NS
# Means are whole numbers, since fractions of many denominators are slow to deal by.
PER_NS = 10**15
# What a signal may catch up on after it was away: longer than any driver's buffer reaches back.
MAX_CREDIT_NS = 600 * SECOND_NS
# What is read after a longer pause goes to pods only if they held the GPU since before it; the second
# source's value of now says nothing about more; and a board is not seen idle over it.
PAUSE_NS = 5 * SECOND_NS
# How far a signal may reach back beyond its look without being late.
JITTER_NS = 2 * SECOND_NS
NVML_SOURCES = (Source.NVML_SAMPLES, Source.NVML_UTILIZATION, Source.GPM)
# A board that vanished while nobody holds it is forgotten after this time.
FORGET_NS = 600 * SECOND_NS

# Who holds a device now: None when the kubelet does not say.
Held: TypeAlias = Callable[[DeviceKey], Sequence[Holding] | None]


@dataclass(frozen=True, slots=True)
class Second:
    """The second source, dcgm-exporter: for what NVML lacks.

    ``ratio`` is the share of the time, 0 to 1, that a signal is active now, ``energy_mj`` a board's total
    since the driver was loaded; None where there is none, or only an old one.
    """

    ratio: Callable[[DeviceKey, Signal], float | None]
    energy_mj: Callable[[str], int | None]


NO_SECOND = Second(lambda _device, _signal: None, lambda _uuid: None)


class Meter:
    """Adds each look to the accounts. ``boards`` is what is remembered of each board, by UUID."""

    def __init__(self, accounts: Accounts, boards: dict[str, BoardState], last_ns: int | None = None) -> None:
        self.accounts = accounts
        self.boards = boards
        self.last_ns = last_ns
        self.failures = 0
        """How often a board could not be counted because of a mistake of ours."""
        self.impossible_steps = 0
        """How many steps of energy were left out, since no board can make them."""

    def advance(
        self,
        now_ns: int,
        reading: NodeReading | None,
        held: Held,
        owner: Callable[[int], Owner],
        second: Second = NO_SECOND,
    ) -> None:
        """Bring the counters up to ``now_ns``; ``held`` is who held what since the last look.

        ``reading`` is None when the driver did not answer: holders go on holding, nothing is measured.
        """
        elapsed_ns = 0 if self.last_ns is None else max(0, now_ns - self.last_ns)
        self.last_ns = now_ns
        known = set(self.boards)
        found = {board.uuid: board for board in reading.boards} if reading else {}
        for uuid, board in found.items():
            state = self.boards.setdefault(uuid, BoardState(board, now_ns))
            state.lost = board.lost
            if not board.lost:
                state.answered(board, now_ns)
        for uuid, state in list(self.boards.items()):
            if uuid not in found:
                state.lost = state.lost or ("NO_DRIVER" if reading is None else "GONE")
            is_old = uuid not in found and now_ns - state.answered_ns > FORGET_NS
            # A lost board is called by its place until it can say its UUID.
            is_named_now = reading is not None and uuid not in found and ":" in uuid
            if is_named_now or (state.lost and is_old and _is_free(state, held)):
                del self.boards[uuid]
                continue
            look = _Look(
                self.accounts, state, elapsed_ns if uuid in known else 0, now_ns, held, owner, second
            )
            try:
                look.add(found.get(uuid))
            except Exception:
                # The other boards are counted all the same.
                logger.exception("board %s could not be counted", uuid)
                self.failures += 1
            self.impossible_steps += look.impossible_steps

    def open(self, held: Held) -> None:
        """Let the counters of those who hold something now begin, at 0."""
        for state in self.boards.values():
            for device in state.layout():
                if state.device(device.key).method is Method.NONE and not state.lost:
                    continue  # no look at it yet, or no signal: the next look says by which method
                shares = held_shares(held(device.key))
                rows = _rows(shares, device.key, state.device(device.key).method)
                self.accounts.add(device.key, Measure.HELD, 0, rows)


class _Used(NamedTuple):
    """A device, who used it, and for how long each signal was active in this look (board ns)."""

    device: Device
    users: Users
    active_ns: Mapping[Signal, int]


@dataclass(slots=True)
class _Look:
    """One look at one board."""

    accounts: Accounts
    state: BoardState
    elapsed_ns: int
    now_ns: int
    held: Held
    owner: Callable[[int], Owner]
    second: Second
    impossible_steps: int = 0
    _shares: dict[DeviceKey, Weights] = field(default_factory=dict)

    def add(self, board: BoardReading | None) -> None:
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

    def _spans(self, devices: Sequence[Device]) -> list[int]:
        """The elapsed time dealt to the devices by their part of the board; the rest is unpartitioned."""
        rest = self.state.unpartitioned()
        spans = split_by_weight(self.elapsed_ns, dict(enumerate((*(d.part for d in devices), rest))))
        if rest:
            board = DeviceKey(self.state.seen.uuid)
            row = Row(UNPARTITIONED, board, Method.EXACT)
            self.accounts.add(board, Measure.HELD, spans[len(devices)], {row: 1})
        return list(spans.values())

    def _held_shares(self, device: Device) -> Weights:
        """Who holds which share; added up once in a look, for all that is dealt by it."""
        if device.key not in self._shares:
            self._shares[device.key] = held_shares(self.held(device.key))
        return self._shares[device.key]

    def _users(self, device: Device) -> Users:
        holdings, state = self.held(device.key), self.state.device(device.key)
        processes = self._processes(device)
        state.owners = dict(Counter(process.owner.kind.value for process in processes or ()))
        weights = process_weights(holdings, processes)
        return users(holdings, None if weights is None else self._means(device, weights))

    def _means(self, device: Device, weights: Mapping[Who, int]) -> dict[Who, int]:
        """Mean weights over the last seconds, of each over those in which it had a process there."""
        state = self.state.device(device.key)
        if any(weights.values()):
            state.weighed.append(Weighed(self.now_ns, max(1, self.elapsed_ns), weights))
        state.weighed = [look for look in state.weighed if self.now_ns - look.at_ns <= WEIGHTS_SPAN_NS]
        holders = self._held_shares(device)
        here = {who for look in state.weighed for who in look.weights if _is_here(who, holders)}
        means = dict.fromkeys(weights, 0)
        for who in here:
            looks = [look for look in state.weighed if who in look.weights]
            total = sum(look.weights[who] for look in looks)
            means[who] = total * PER_NS // sum(look.elapsed_ns for look in looks)
        return means

    def _processes(self, device: Device) -> list[Process] | None:
        if device.reading is None or device.reading.processes is None:
            return None
        return [Process(self.owner(found.pid), found.sm_weight) for found in device.reading.processes]

    def _signals(self, device: Device, use: Users, span_ns: int) -> dict[Signal, int]:
        """Add what was observed and active; returns the active nanoseconds of each signal there was."""
        state = self.state.device(device.key)
        active_ns: dict[Signal, int] = {}
        for signal in Signal:
            activity = self._activity(device, signal, state, span_ns)
            if activity is None:
                continue
            active_ns[signal] = activity.active_ns
            self._add_activity(device, signal, activity, use, span_ns)
        # A signal that the driver has, and that merely brought nothing new yet, is a signal.
        is_due = device.reading is not None and Signal.BUSY not in device.reading.missing
        has_signal = is_due or state.sources[Signal.BUSY] != Source.NONE
        state.method = use.method if has_signal else Method.NONE
        return active_ns

    def _activity(self, device: Device, signal: Signal, state: DeviceState, span_ns: int) -> Activity | None:
        """What NVML, else the second source, observed, in board time; never more than there was."""
        credit = min(MAX_CREDIT_NS, state.credit_ns.get(signal, 0) + span_ns)
        state.credit_ns[signal] = credit
        found = device.reading.activity.get(signal) if device.reading else None
        if found is None and (device.reading is None or signal in device.reading.missing):
            ratio = self.second.ratio(device.key, signal)
            if ratio is None:
                state.sources[signal] = Source.NONE
                return None
            recent_ns = min(self.elapsed_ns, PAUSE_NS)
            found = Activity(recent_ns, int(recent_ns * ratio), Source.DCGM)
        if found is None:
            return None
        state.sources[signal] = found.source
        observed_ns = min(found.observed_ns * device.part.numerator // device.part.denominator, credit)
        state.credit_ns[signal] = credit - observed_ns
        active_ns = found.active_ns * observed_ns // found.observed_ns if found.observed_ns else 0
        return Activity(observed_ns, min(active_ns, observed_ns), found.source)

    def _add_activity(
        self, device: Device, signal: Signal, activity: Activity, use: Users, span_ns: int
    ) -> None:
        observed, active = MEASURES[signal]
        by_share = _rows(self._held_shares(device), device.key, use.method)
        by_use = _rows(use.weights, device.key, use.method)
        late_ns = activity.observed_ns - span_ns
        if late_ns > JITTER_NS and not self._is_held_since(self.now_ns - self.elapsed_ns - late_ns, [device]):
            # The driver caught up on a pause; who had the GPU then is not known.
            unknown = {Row(UNKNOWN, device.key, Method.NONE): 1}
            late_active_ns = activity.active_ns * late_ns // activity.observed_ns
            self.accounts.add(device.key, observed, late_ns, unknown)
            self.accounts.add(device.key, active, late_active_ns, unknown)
            activity = Activity(span_ns, activity.active_ns - late_active_ns, activity.source)
        self.accounts.add(device.key, observed, activity.observed_ns, by_share)
        self.accounts.add(device.key, active, activity.active_ns, by_use)
        # A holder that did nothing was seen doing nothing: 0, not absent.
        for row in by_share:
            self.accounts.rows[row].setdefault(active, 0)

    def _is_held_since(self, since_ns: int, devices: Iterable[Device]) -> bool:
        """Whether pods hold these devices, and all of them did at ``since_ns`` already."""
        pods = {held.pod for device in devices for held in self.held(device.key) or ()}
        lives = [self.accounts.pods.get(pod) for pod in pods]
        return bool(pods) and all(life and life.since_ns <= since_ns for life in lives)

    def _held(self, device: Device, span_ns: int) -> None:
        if not self.elapsed_ns:
            return
        shares = self._held_shares(device)
        method = self.state.device(device.key).method
        self.accounts.add(device.key, Measure.HELD, span_ns, _rows(shares, device.key, method))

    def _watch_idling(self, used: Sequence[_Used]) -> None:
        """Note since when all of the board was seen idle, by the driver itself and without a pause."""
        is_watched = all(
            self.state.device(found.device.key).sources[Signal.BUSY] in NVML_SOURCES for found in used
        )
        is_active = any(any(found.active_ns.values()) for found in used)
        is_broken = not used or not is_watched or is_active or self.elapsed_ns > PAUSE_NS or self.state.lost
        if self.state.quiet_ns is None or is_broken:
            self.state.quiet_ns = self.now_ns

    def _energy(self, board: BoardReading | None, used: Sequence[_Used]) -> None:
        total, source = (board.energy_mj, NVML) if board is not None else (None, NVML)
        if total is None:
            total, source = self.second.energy_mj(self.state.seen.uuid), Source.DCGM
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
            by_share = by_use = {Row(UNKNOWN, gpu, Method.NONE): 1}
        self.accounts.add(gpu, Measure.ENERGY, idle_mj, by_share)
        self.accounts.add(gpu, Measure.ENERGY, step - idle_mj, by_use or by_share)

    def _idle_rows(self, used: Sequence[_Used]) -> dict[Row, int | Fraction]:
        """What a board draws by being on is dealt by the share held."""
        rows: dict[Row, int | Fraction] = {}
        for device, use, _ in used:
            method = self._energy_method(use)
            for row, share in _rows(self._held_shares(device), device.key, method).items():
                rows[row] = device.part * share
        rest = self.state.unpartitioned()
        return (
            rows | {Row(UNPARTITIONED, DeviceKey(self.state.seen.uuid), Method.EXACT): rest} if rest else rows
        )

    def _use_rows(self, used: Sequence[_Used]) -> dict[Row, int | Fraction]:
        """What a board draws beyond that is dealt by use: among MIG instances by activity and slices.

        By one signal for all of them: SM activity where each has it, else busy time.
        """
        rows: dict[Row, int | Fraction] = {}
        is_alone = len(used) == 1 and not self.state.seen.mig
        signal = Signal.SM if all(Signal.SM in found.active_ns for found in used) else Signal.BUSY
        for device, use, active_ns in used:
            whole = 1 if is_alone else active_ns.get(signal, 0)
            total = sum(use.weights.values())
            for row, weight in _rows(use.weights, device.key, self._energy_method(use)).items():
                if whole and weight:
                    rows[row] = whole * Fraction(weight) / total
        return rows

    def _energy_method(self, use: Users) -> Method:
        # NVML counts the energy of boards only: an instance's part is an estimate.
        return Method.WEIGHTED if self.state.seen.mig else use.method

    def _events(self, board: BoardReading) -> None:
        for reason, step in self.state.throttled_step(board.throttled_ns).items():
            place = board.uuid, reason
            self.accounts.throttled_ns[place] = self.accounts.throttled_ns.get(place, 0) + step
        for xid in board.xids:
            self.accounts.xids[board.uuid, xid] = self.accounts.xids.get((board.uuid, xid), 0) + 1


def _is_free(state: BoardState, held: Held) -> bool:
    holdings = [held(device.key) for device in state.layout()]
    return all(found is not None and not found for found in holdings)


def _rows(weights: Weights, device: DeviceKey, method: Method) -> dict[Row, int | Fraction]:
    return {Row(who, device, _method(who, method)): weight for who, weight in weights.items()}


def _method(who: Who, method: Method) -> Method:
    """Nobody's rows keep one method, whatever happens beside them."""
    if who in (UNALLOCATED, UNPARTITIONED):
        return Method.EXACT
    return Method.NONE if who.holder in (Holder.SHARED_OVERHEAD, Holder.UNKNOWN) else method


def _is_here(who: Who, holders: Weights) -> bool:
    return who.holder is not Holder.POD or who in holders
