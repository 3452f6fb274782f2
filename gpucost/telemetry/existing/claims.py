"""Which part of which device each pod held, step by step: what readings of devices are cut to.

A row names a device and a pod; who held what, from when to when, and among how many a device was handed out,
is known from Kubernetes. Labels outlive what was held (the kubelet goes on naming pods that have ended), so
whatever was read counts for no more than the time held.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpucost.domain.errors import InputError
from gpucost.domain.gpu import WHOLE, mig_share, parse_product
from gpucost.domain.time import Window
from gpucost.telemetry.evidence import IntArray
from gpucost.telemetry.existing.holdings import Hold, Holdings
from gpucost.telemetry.existing.series import Reading
from gpucost.telemetry.existing.settings import ExistingSettings
from gpucost.telemetry.existing.subjects import Device, Key
from gpucost.telemetry.history_runs import Floats

_MIG = "nvidia.com/mig-"
Claim = tuple[Device, str]
"""A device, and the uid of a pod that held it or a part of it."""


@dataclass(frozen=True)
class Claimed:
    """What one pod held of one device. ``share`` is the device's part of a board; the device is handed out to
    ``replicas`` holders, of which the pod may be ``count``. ``held`` is the time held in each step, in ms;
    ``stretches`` the same as intervals."""

    node: str
    share: float
    replicas: int
    count: int
    held: Floats
    stretches: Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Used:
    """One field by claim and step: device milliseconds observed, amount in the base unit times ms, peak, and
    how many copies (replicas of a shared device) of it the pod had."""

    observed: Floats
    amount: Floats
    peak: Floats
    copies: Floats


class Claims:
    """The claims of all ``keys``, and readings by them."""

    def __init__(
        self,
        keys: Iterable[Key],
        products: Mapping[Device, tuple[str, str]],
        holdings: Holdings,
        settings: ExistingSettings,
        steps: Sequence[Window],
    ) -> None:
        self._steps = steps
        self._edges = np.array([(each.start_ms, each.end_ms) for each in steps], dtype=np.float64).T
        self.unknown: set[Device] = set()
        """Devices of which nothing says what part of a board they are."""
        self.of: dict[Claim, Claimed] = {}
        whole = Window(steps[0].start_ms, steps[-1].end_ms)
        shares: dict[Device, float | None] = {}
        for key in keys:
            if key.device not in shares:
                shares[key.device] = _share(*products[key.device], settings)
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
        self.held = self._grid(each.held for each in self.of.values())
        self.caps = self._caps(holdings, settings, whole)

    def of_reading(self, reading: Reading) -> Used:
        """Cut to the time held. What pods of one name read is each one's by the time that it held."""
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
        # Rows with numbers of copies are of the same time; others follow one another.
        virtual = np.zeros((len(self.held), 1), dtype=bool)
        is_copy = np.array([bool(key.vgpu) for key in reading.keys], dtype=bool)
        virtual[rows[is_copy[whose]]] = True
        time = np.where(virtual, longest, np.minimum(total, self.held))
        copies = np.where(virtual, total / np.maximum(longest, 1e-9), total > 0)
        return Used(time, amount * time / np.maximum(total, 1e-9), peak, copies)

    def rows_of(self, reading: Reading) -> tuple[IntArray, IntArray]:
        """Rows of ``reading`` and of the claims that they are of, pair by pair."""
        pairs = [
            (row, self.at[key.device, uid])
            for key, row in reading.keys.items()
            for uid in key.uids
            if (key.device, uid) in self.at
        ]
        whose, rows = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        return whose, rows

    def _claimed(self, holds: Sequence[Hold], share: float) -> Claimed:
        stretches = _joined((hold.start_ms, hold.end_ms) for hold in holds)
        held = np.zeros(len(self._steps))
        for stretch in stretches:
            held += self._overlap(*stretch)
        replicas = max(hold.replicas for hold in holds)
        count = max(hold.count for hold in holds)
        return Claimed(holds[-1].node, share, replicas, count, held, stretches)

    def _overlap(self, start_ms: int, end_ms: int) -> Floats:
        starts, ends = self._edges
        found: Floats = np.maximum(np.minimum(ends, end_ms) - np.maximum(starts, start_ms), 0.0)
        return found

    def _caps(self, holdings: Holdings, settings: ExistingSettings, whole: Window) -> Mapping[str, Floats]:
        """By pod, the board time that all its units were in each step."""
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


def _share(model: str, profile: str, settings: ExistingSettings) -> float | None:
    """The part of a board that a device is; None for an instance of a kind that nobody knows."""
    if not profile or profile.startswith("<<<"):
        return 1.0
    try:
        return float(mig_share(parse_product(model).model, profile, settings.basis))
    except InputError:
        return None


def _fitting(
    device: Device, products: Mapping[Device, tuple[str, str]], holds: Sequence[Hold]
) -> Sequence[Hold]:
    """Of what a pod held, the units that the device can be one of; all, where none fits."""
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
