"""Devices that several pods share, which dcgm-exporter never splits right.

What its rows are is told by the rows themselves. With ``vgpu`` (its virtual-GPU flag), or with rows of
several pods at the same time, they are copies of the device's value, one for each holder. A row of the device
itself beside those of pods (busy time and memory from release 4.8.2 on) says that theirs are their own. Else
one arbitrary pod has the whole device to its name, and nothing can be said of any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

import numpy as np

from gpucost.domain.time import Window
from gpucost.telemetry.existing.claims import Claimed, Claims, Used
from gpucost.telemetry.existing.series import Reading
from gpucost.telemetry.existing.subjects import Device
from gpucost.telemetry.history_runs import Floats

_ROUNDING = 1e-6


class Rows(Enum):
    """What the rows of pods on a shared device are."""

    COPIES = "copies"
    ARBITRARY = "arbitrary"


def kinds_of(
    claims: Claims, readings: Sequence[Reading], length_ms: int, slack_ms: float
) -> dict[Device, Rows]:
    """Of the devices that are shared."""
    shared = {device for (device, _), claimed in claims.of.items() if claimed.replicas > 1}
    kinds: dict[Device, Rows] = {}
    for reading in readings:
        seen: dict[Device, Floats] = {}
        for key, row in reading.keys.items():
            if key.vgpu:
                kinds[key.device] = Rows.COPIES
            elif key.device in shared and key.uids:
                seen[key.device] = seen.get(key.device, 0.0) + reading.observed[row]
        for device, total in seen.items():
            if (total > length_ms + 2 * slack_ms).any():
                kinds[device] = Rows.COPIES
    return {device: kinds.get(device, Rows.ARBITRARY) for device in shared | kinds.keys()}


def of_devices(reading: Reading, slack_ms: float, length_ms: int) -> dict[Device, tuple[Floats, Floats]]:
    """Time observed and amount of devices that have a row of their own beside those of pods."""
    own: dict[Device, tuple[Floats, Floats]] = {}
    pods: dict[Device, Floats] = {}
    for key, row in reading.keys.items():
        if key.uids:
            seen = reading.observed[row]
            pods[key.device] = np.maximum(pods[key.device], seen) if key.device in pods else seen
        else:
            before = own.get(key.device, (0.0, 0.0))
            own[key.device] = before[0] + reading.observed[row], before[1] + reading.amount[row]
    return {
        device: found
        for device, found in own.items()
        if device in pods and (found[0] + pods[device] > length_ms + 2 * slack_ms).any()
    }


@dataclass(frozen=True, slots=True)
class Member:
    """One of those who share: what it read of the device, and its part of it."""

    claimed: Claimed
    row: int
    parts: Floats


def split(used: Used, members: Sequence[Member], steps: Sequence[Window]) -> tuple[Floats, Floats]:
    """Of copies of a device's value, the part of each of ``members``: by what each held of the device among
    those who held it at the same time. The parts add up to the device's value. Then, how much of each part is
    of time when others were there, so that it may be theirs."""
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
    used: Used, members: Sequence[Member], step: Window, at: int
) -> tuple[list[float], list[float]]:
    """Cut where any of them begins or ends. All see the same device, so what the one with the least time
    read tells of the stretches that it was there for, and each further one of what is left of its own."""
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


def limited(used: Used, rows: Sequence[int], device: tuple[Floats, Floats]) -> Floats:
    """The pods' own values, lowered where together they are more than the device's."""
    total = used.amount[rows].sum(axis=0)
    fits = np.where(total > device[1], device[1] / np.maximum(total, 1e-9), 1.0)
    found: Floats = used.amount[rows] * fits
    return found


@dataclass(frozen=True, slots=True)
class Drawn:
    """Of claims by step: energy of the whole board and the time that it was seen for, the part of the board
    that each claim is, the board time that it kept busy (NaN where nobody knows), and its held time."""

    energy: Floats
    observed: Floats
    parts: Floats
    busy: Floats
    held: Floats


def misplaced_ms(boards: Sequence[str], drawn: Drawn) -> float:
    """The most energy that may be another's because boards are split by what was held of them, as time of
    such a board at its mean power.

    What a board draws at rest is rightly split by what was held, what it draws at work by who worked. Nobody
    knows how much is which, so the truth is somewhere between one and the other.
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
    """Of one board, in the unit of ``energy``."""
    there = energy > 0
    worked = np.where(there, busy, 0.0)
    total = np.nansum(worked, axis=0)
    used = np.where(total > 0, worked / np.maximum(total, 1e-9), parts)
    off = np.where(there, (used - parts) * energy, 0.0)
    apart = np.maximum(np.maximum(off, 0.0).sum(axis=0), np.maximum(-off, 0.0).sum(axis=0))
    smallest = np.where(there, parts, 1.0).min(axis=0)
    most = energy.max(axis=0) * np.maximum(1.0 - smallest, np.where(there, parts, 0.0).sum(axis=0))
    # Those who were there at different times of a step did not share what it drew.
    together = np.where(there, held, 0.0).max(axis=0) == np.where(there, held, np.inf).min(axis=0)
    known = together & ~np.isnan(worked).any(axis=0)
    return float(np.where(there.any(axis=0), np.where(known, apart, most), 0.0).sum())
