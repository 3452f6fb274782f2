"""What happened between two snapshots, as a table for a person at a node's shell (``--once``). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpucost.contract.gpu_metrics import Holder, Measure, Method
from gpucost_gpu_exporter.boards import Device
from gpucost_gpu_exporter.families import BoardView, Snapshot
from gpucost_gpu_exporter.holdings import DeviceKey
from gpucost_gpu_exporter.quantities import exported
from gpucost_gpu_exporter.split import Who
from gpucost_gpu_exporter.wording import device_name, sentences

_HEAD = ("GPU", "WHAT", "HELD BY", "SHARE", "BUSY", "SM", "TENSOR", "POWER", "METHOD")
_UNKNOWN = "-"
_RATIOS = (
    (Measure.BUSY, Measure.OBSERVED),
    (Measure.SM_ACTIVE, Measure.SM_OBSERVED),
    (Measure.TENSOR_ACTIVE, Measure.TENSOR_OBSERVED),
)


@dataclass(frozen=True, slots=True)
class _Look:
    """What the counters rose by between the two snapshots, in ``seconds``, by device and holder."""

    rises: Mapping[DeviceKey, Mapping[Who, Mapping[Measure, int]]]
    methods: Mapping[tuple[DeviceKey, Who], Sequence[Method]]
    seconds: float

    def of_device(self, key: DeviceKey, measure: Measure) -> int:
        return sum(rise.get(measure, 0) for rise in self.rises.get(key, {}).values())

    def of_board(self, uuid: str, measure: Measure) -> int:
        return sum(self.of_device(key, measure) for key in self.rises if key.gpu_uuid == uuid)


def render(before: Snapshot, after: Snapshot) -> str:
    """A line per GPU or MIG instance and holder, then a line for all that is missing. Ends in a newline.

    SHARE is of the board; BUSY, SM and TENSOR are of the GPU or MIG instance, so the holders of a shared one
    add up to it; ``-`` is what nobody could say. Whether counters would survive a restart is left out: a
    look keeps none.
    """
    look = _look(before, after)
    rows = [line for board in after.boards for line in _board(look, board)]
    table = _aligned([_HEAD, *rows]) if rows else "no GPUs found\n"
    lacks = [lack for lack in after.lacks if lack.part != "state_file"]
    return table + "".join(f"{sentence}\n" for sentence in sentences(lacks))


def _look(before: Snapshot, after: Snapshot) -> _Look:
    rises: dict[DeviceKey, dict[Who, dict[Measure, int]]] = {}
    methods: dict[tuple[DeviceKey, Who], list[Method]] = {}
    for row, amounts in after.accounts.rows.items():
        then = before.accounts.rows.get(row, {})
        rise = {measure: amount - then.get(measure, 0) for measure, amount in amounts.items()}
        if any(rise.values()):
            methods.setdefault((row.device, row.who), []).append(row.method)
            found = rises.setdefault(row.device, {}).setdefault(row.who, {})
            found |= {measure: found.get(measure, 0) + amount for measure, amount in rise.items()}
    return _Look(rises, methods, (after.at_ms - before.at_ms) / 1000)


def _board(look: _Look, board: BoardView) -> Iterator[Sequence[str]]:
    uuid, product = board.seen.uuid, board.seen.product
    for device in board.devices:
        yield from _device(look, device.key, f"{product}{_profile(device)}{_lost(board)}")
    shown = {device.key for device in board.devices}
    if not shown or DeviceKey(uuid) in look.rises.keys() - shown:
        yield from _device(look, DeviceKey(uuid), f"{product}{_lost(board)}")


def _profile(device: Device) -> str:
    profile = getattr(device.reading, "profile", "")
    return f" {profile}" if profile else ""


def _lost(board: BoardView) -> str:
    return f" LOST: {board.lost}" if board.lost else ""


def _device(look: _Look, key: DeviceKey, what: str) -> Iterator[Sequence[str]]:
    found = sorted(look.rises.get(key, {}), key=lambda who: (who.holder is not Holder.POD, who))
    name = device_name(key)
    for cells in [_holder(look, key, who) for who in found] or [(_UNKNOWN,) * (len(_HEAD) - 2)]:
        yield name, what, *cells
        name = what = ""


def _holder(look: _Look, key: DeviceKey, who: Who) -> Sequence[str]:
    rise, pod = look.rises[key][who], who.pod
    name = f"{pod.namespace}/{pod.name}" if who.holder is Holder.POD else who.holder.value
    held, whole = rise.get(Measure.HELD, 0), look.of_board(key.gpu_uuid, Measure.HELD)
    share = f"{held / whole:.3g}" if held else _UNKNOWN
    ratios = [_ratio(look, key, rise, active, observed) for active, observed in _RATIOS]
    methods = ", ".join(sorted(look.methods[key, who]))
    return name, share, *ratios, _power(look, key, rise), methods


def _ratio(
    look: _Look, key: DeviceKey, rise: Mapping[Measure, int], active: Measure, observed: Measure
) -> str:
    whole = look.of_device(key, observed)
    return f"{rise[active] / whole:.0%}" if active in rise and whole else _UNKNOWN


def _power(look: _Look, key: DeviceKey, rise: Mapping[Measure, int]) -> str:
    joules = rise.get(Measure.ENERGY)
    # A board that is on always draws something: where its energy did not rise, nobody read it.
    if joules is None or not look.seconds or not look.of_board(key.gpu_uuid, Measure.ENERGY):
        return _UNKNOWN
    return f"{exported(Measure.ENERGY, joules) / look.seconds:.0f} W"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)
