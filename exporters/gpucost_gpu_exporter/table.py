"""A snapshot as a table for a person at a node's shell (``--once``). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpucost.contract.gpu_metrics import Holder, Measure
from gpucost_gpu_exporter.accounts import Row
from gpucost_gpu_exporter.boards import Device
from gpucost_gpu_exporter.families import BoardView, Snapshot

_HEAD = ("GPU", "WHAT", "HELD BY", "SHARE", "BUSY", "SM", "TENSOR", "POWER", "METHOD")
_RATIOS = (
    (Measure.BUSY, Measure.OBSERVED),
    (Measure.SM_ACTIVE, Measure.SM_OBSERVED),
    (Measure.TENSOR_ACTIVE, Measure.TENSOR_OBSERVED),
)


def render(before: Snapshot, after: Snapshot) -> str:
    """What happened between two snapshots: a line per GPU and holder, then what is missing and why.

    Shares and ratios are of the board time held; ``-`` is what nobody could say. Ends in a newline.
    """
    rows = [line for board in after.boards for line in _board(before, after, board)]
    parts = [_aligned([_HEAD, *rows])] if rows else ["no GPUs\n"]
    for lack, since_ms in after.lacks.items():
        where = " ".join(part for part in lack.device if part) or "node"
        parts.append(f"missing: {lack.part} on {where}: {lack.reason} (for {_ago(after.at_ms - since_ms)})\n")
    return "".join(parts)


def _board(before: Snapshot, after: Snapshot, board: BoardView) -> Iterator[Sequence[str]]:
    if board.lost:
        yield board.seen.uuid, f"LOST: {board.lost}", *["-"] * (len(_HEAD) - 2)
        return
    for device in board.devices:
        name = ":".join(part for part in device.key if part)
        what = f"{board.seen.product} {getattr(device.reading, 'profile', '')}".strip()
        rows = [row for row in after.accounts.rows if row.device == device.key]
        lines = [line for row in sorted(rows) if (line := _holder(before, after, device, row))]
        for line in lines or [("-",) * (len(_HEAD) - 2)]:
            yield name, what, *line
            name = what = ""


def _holder(before: Snapshot, after: Snapshot, device: Device, row: Row) -> Sequence[str] | None:
    now, then = after.accounts.rows[row], before.accounts.rows.get(row, {})
    rise = {measure: amount - then.get(measure, 0) for measure, amount in now.items()}
    whole = sum(
        amounts.get(Measure.HELD, 0) - before.accounts.rows.get(key, {}).get(Measure.HELD, 0)
        for key, amounts in after.accounts.rows.items()
        if key.device == device.key
    )
    held = rise.get(Measure.HELD, 0)
    if not any(rise.values()) or not whole:
        return None
    pod = row.who.pod
    who = f"{pod.namespace}/{pod.name}" if row.who.holder is Holder.POD else row.who.holder.value
    share = f"{float(held * device.part) / whole:.3g}" if held else "-"
    ratios = [_ratio(rise, active, observed) for active, observed in _RATIOS]
    joules, seconds = rise.get(Measure.ENERGY), (after.at_ms - before.at_ms) / 1000
    power = "-" if joules is None or not seconds else f"{joules / (1 << 14) / seconds:.0f} W"
    return who, share, *ratios, power, row.method.value


def _ratio(rise: dict[Measure, int], active: Measure, observed: Measure) -> str:
    if active not in rise or not rise.get(observed):
        return "-"
    return f"{rise[active] / rise[observed]:.0%}"


def _ago(ms: int) -> str:
    seconds = max(0, ms) // 1000
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)
