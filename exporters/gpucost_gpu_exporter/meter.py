"""From looks at the GPUs to counters: each look adds the time since the one before. Pure.

The driver's figures are of boards and MIG instances; the kubelet says who holds them; ``split`` says who
used them. Seconds are board seconds: an instance of 3 of 7 slices counts 3/7.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from gpucost.contract.gpu_metrics import Holder, Measure, Method
from gpucost.domain.money import split_by_weight
from gpucost_gpu_exporter.accounts import Accounts, Row
from gpucost_gpu_exporter.boards import BoardState, Device, DeviceState
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

MEASURES: Mapping[Signal, tuple[Measure, Measure]] = {
    Signal.BUSY: (Measure.OBSERVED, Measure.BUSY),
    Signal.SM: (Measure.SM_OBSERVED, Measure.SM_ACTIVE),
    Signal.TENSOR: (Measure.TENSOR_OBSERVED, Measure.TENSOR_ACTIVE),
}
# Per-process samples come up to ten seconds late (NVIDIA/go-nvml#51); until then the last ones stand.
WEIGHTS_MAX_AGE_NS = 10 * SECOND_NS
# What a signal may catch up on after it was away: longer than any driver's buffer reaches back.
MAX_CREDIT_NS = 600 * SECOND_NS
# Energy read after a longer pause goes to pods only if they hold the board since before it.
ENERGY_PROVEN_NS = 5 * SECOND_NS
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
            if state.lost and now_ns - state.answered_ns > FORGET_NS and _is_free(state, held):
                del self.boards[uuid]
                continue
            look = _Look(
                self.accounts, state, elapsed_ns if uuid in known else 0, now_ns, held, owner, second
            )
            look.add(found.get(uuid))

    def open(self, held: Held) -> None:
        """Let the counters of those who hold something now begin, at 0."""
        for state in self.boards.values():
            for device in state.layout():
                if state.device(device.key).method is Method.NONE and not state.lost:
                    continue  # no look at it yet, or no signal: the next look says by which method
                shares = held_shares(held(device.key))
                rows = _rows(shares, device.key, state.device(device.key).method)
                self.accounts.add(device.key, Measure.HELD, 0, rows)


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

    def add(self, board: BoardReading | None) -> None:
        devices = list(self.state.layout())
        spans = self._spans(devices)
        used: list[tuple[Device, Users, int | None]] = []
        for device, span_ns in zip(devices, spans, strict=False):
            use = self._users(device)
            active_ns = self._signals(device, use, span_ns)
            self._held(device, span_ns)
            used.append((device, use, active_ns))
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

    def _users(self, device: Device) -> Users:
        holdings, state = self.held(device.key), self.state.device(device.key)
        processes = self._processes(device)
        state.owners = dict(Counter(process.owner.kind.value for process in processes or ()))
        weights = process_weights(holdings, processes)
        if weights is None:
            return users(holdings, None)
        if any(weights.values()):
            state.weights, state.weighed_ns = weights, self.now_ns
        elif self.now_ns - state.weighed_ns <= WEIGHTS_MAX_AGE_NS:
            holders = held_shares(holdings)
            recent = {who: weight for who, weight in state.weights.items() if _is_here(who, holders)}
            weights = {**weights, **recent}
        return users(holdings, weights)

    def _processes(self, device: Device) -> list[Process] | None:
        if device.reading is None or device.reading.processes is None:
            return None
        return [Process(self.owner(found.pid), found.sm_weight) for found in device.reading.processes]

    def _signals(self, device: Device, use: Users, span_ns: int) -> int | None:
        """Add what was observed and active; returns the active nanoseconds of the best signal, if any."""
        state = self.state.device(device.key)
        best: dict[Signal, int] = {}
        for signal in Signal:
            activity = self._activity(device, signal, state, span_ns)
            if activity is None:
                continue
            best[signal] = activity.active_ns
            self._add_activity(device, signal, activity, use)
        # A signal that the driver has, and that merely brought nothing new yet, is a signal.
        is_due = device.reading is not None and Signal.BUSY not in device.reading.missing
        has_signal = is_due or state.sources[Signal.BUSY] != Source.NONE
        state.method = use.method if has_signal else Method.NONE
        return best.get(Signal.SM) or best.get(Signal.BUSY)

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
            found = Activity(self.elapsed_ns, int(self.elapsed_ns * ratio), Source.DCGM)
        if found is None:
            return None
        state.sources[signal] = found.source
        observed_ns = min(found.observed_ns * device.part.numerator // device.part.denominator, credit)
        state.credit_ns[signal] = credit - observed_ns
        active_ns = found.active_ns * observed_ns // found.observed_ns if found.observed_ns else 0
        return Activity(observed_ns, min(active_ns, observed_ns), found.source)

    def _add_activity(self, device: Device, signal: Signal, activity: Activity, use: Users) -> None:
        observed, active = MEASURES[signal]
        shares = held_shares(self.held(device.key))
        by_share, by_use = (_rows(dealt, device.key, use.method) for dealt in (shares, use.weights))
        self.accounts.add(device.key, observed, activity.observed_ns, by_share)
        self.accounts.add(device.key, active, activity.active_ns, by_use)
        # A holder that did nothing was seen doing nothing: 0, not absent.
        for row in by_share:
            self.accounts.rows[row].setdefault(active, 0)

    def _held(self, device: Device, span_ns: int) -> None:
        if not self.elapsed_ns:
            return
        shares = held_shares(self.held(device.key))
        method = self.state.device(device.key).method
        self.accounts.add(device.key, Measure.HELD, span_ns, _rows(shares, device.key, method))

    def _energy(self, board: BoardReading | None, used: Sequence[tuple[Device, Users, int | None]]) -> None:
        total, source = (board.energy_mj, "nvml") if board is not None else (None, "nvml")
        if total is None:
            total, source = self.second.energy_mj(self.state.seen.uuid), Source.DCGM
        since_ns = self.state.energy_ns
        step = None if total is None else self.state.energy_step(total, source, self.now_ns)
        if step is None:
            return
        span_ns = self.state.energy_ns - since_ns
        self.state.idle.learn(bool(used) and all(active_ns == 0 for _, _, active_ns in used), span_ns, step)
        idle_mj = self.state.idle.of(span_ns, step)
        gpu, by_share, by_use = DeviceKey(self.state.seen.uuid), self._idle_rows(used), self._use_rows(used)
        if span_ns > ENERGY_PROVEN_NS and not self._is_held_as_before():
            by_share = by_use = {Row(UNKNOWN, gpu, Method.NONE): 1}
        self.accounts.add(gpu, Measure.ENERGY, idle_mj, by_share)
        self.accounts.add(gpu, Measure.ENERGY, step - idle_mj, by_use or by_share)

    def _is_held_as_before(self) -> bool:
        """Whether all pods that hold the board now did so when its energy was last read."""
        pods = {held.pod for device in self.state.layout() for held in self.held(device.key) or ()}
        lives = [self.accounts.pods.get(pod) for pod in pods]
        return bool(pods) and all(life and life.since_ns <= self.state.energy_ns for life in lives)

    def _idle_rows(self, used: Sequence[tuple[Device, Users, int | None]]) -> dict[Row, int | Fraction]:
        """What a board draws by being on is dealt by the share held."""
        rows: dict[Row, int | Fraction] = {}
        for device, use, _ in used:
            method = self._energy_method(use)
            for row, share in _rows(held_shares(self.held(device.key)), device.key, method).items():
                rows[row] = device.part * share
        rest = self.state.unpartitioned()
        return (
            rows | {Row(UNPARTITIONED, DeviceKey(self.state.seen.uuid), Method.EXACT): rest} if rest else rows
        )

    def _use_rows(self, used: Sequence[tuple[Device, Users, int | None]]) -> dict[Row, int | Fraction]:
        """What a board draws beyond that is dealt by use: among MIG instances by activity and slices."""
        rows: dict[Row, int | Fraction] = {}
        is_alone = len(used) == 1 and not self.state.seen.mig
        for device, use, active_ns in used:
            whole = 1 if is_alone else active_ns or 0
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
