"""The kept state as JSON, and back: what parses and yet cannot have been written is refused. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from gpucost_gpu_exporter.accounts import Accounts
from gpucost_gpu_exporter.boards import BoardState
from gpucost_gpu_exporter.holdings import DeviceKey, Holding, Pod
from gpucost_gpu_exporter.readings import BoardReading

VERSION = 1
# Nanoseconds of three centuries: whatever is beyond it was not counted.
_LARGEST = 2**63 - 1


@dataclass(slots=True)
class State:
    """``at_ns`` is the time since boot of the last look; ``resume`` is the driver's sample times by UUID."""

    at_ns: int | None = None
    accounts: Accounts = field(default_factory=Accounts)
    boards: dict[str, BoardState] = field(default_factory=dict)
    holdings: tuple[Holding, ...] = ()
    resume: dict[str, int] = field(default_factory=dict)


def to_json(state: State, boot_id: str) -> dict[str, Any]:
    """Plain dicts, lists, numbers and strings; ``from_json`` is the inverse."""
    return {
        "version": VERSION,
        "boot_id": boot_id,
        "at_ns": state.at_ns,
        "accounts": state.accounts.to_json(),
        "boards": {uuid: board.to_json() for uuid, board in state.boards.items()},
        "holdings": [
            [*held.pod, *held.device, str(held.share), held.resource, held.containers]
            for held in state.holdings
        ],
        "resume": state.resume,
    }


def from_json(found: Mapping[str, Any]) -> State:
    """Raises ValueError, LookupError, TypeError, AttributeError or ArithmeticError for any other."""
    if found["version"] != VERSION:
        raise ValueError("unknown version")
    state = State(
        at_ns=found["at_ns"],
        accounts=_accounts(found["accounts"]),
        boards={uuid: _board(uuid, board) for uuid, board in found["boards"].items()},
        holdings=tuple(map(_holding, found["holdings"])),
        resume=dict(found["resume"]),
    )
    _numbers(() if state.at_ns is None else (state.at_ns,))
    _numbers(state.resume.values())
    return state


def _accounts(found: Mapping[str, Any]) -> Accounts:
    accounts = Accounts.from_json(found)
    for amounts in (*accounts.gpus.values(), *accounts.rows.values(), *accounts.retired.values()):
        _numbers(amounts.values())
    for life in accounts.pods.values():
        _numbers(life.times)
    _numbers((*accounts.throttled_ns.values(), *accounts.xids.values()))
    for key in (*accounts.gpus, *accounts.retired, *accounts.pods):
        _texts(key)
    for row in accounts.rows:
        _texts((*row.who.pod, *row.device))
    _texts(uuid for uuid, _ in (*accounts.throttled_ns, *accounts.xids))
    _texts(reason for _, reason in accounts.throttled_ns)
    _numbers(xid for _, xid in accounts.xids)
    return accounts


def _board(uuid: str, found: Mapping[str, Any]) -> BoardState:
    board = BoardState.from_json(found)
    if board.devices or board.seen.uuid != uuid:
        raise ValueError("another board")
    _texts((board.lost, board.energy_source, *board.throttled_ns))
    idle = board.idle
    _numbers((board.answered_ns, board.energy_ns, board.epoch, idle.stretch_ns, idle.stretch_mj))
    _numbers(board.throttled_ns.values())
    _numbers(number for number in (board.energy_mj, idle.milliwatts) if number is not None)
    _seen(board.seen)
    return board


def _seen(board: BoardReading) -> None:
    """What is shown of a board, and in how many parts it is cut, before the driver has answered again."""
    _texts((board.uuid, board.product, board.pci_bus_id, board.lost))
    for missing in (board.missing, *(instance.missing for instance in board.instances)):
        _texts((*missing, *missing.values()))
    if type(board.mig) is not bool:
        raise ValueError("mig is neither true nor false")
    totals = (board.minor, board.memory_used_bytes, board.memory_total_bytes, board.energy_mj)
    _numbers(number for number in totals if number is not None)
    for instance in board.instances:
        _numbers((instance.gpu_instance, instance.slices, instance.of_slices))
        if not 0 < instance.slices <= instance.of_slices:
            raise ValueError("an instance larger than its board")


def _holding(found: Any) -> Holding:
    namespace, pod, uid, uuid, gi, share, resource, names = found
    _texts((namespace, pod, uid, uuid, gi, share, resource, *names))
    held = Holding(Pod(namespace, pod, uid), DeviceKey(uuid, gi), Fraction(share), resource, tuple(names))
    if not 0 < held.share <= 1:
        raise ValueError("a share that is none")
    return held


def _numbers(values: Iterable[object]) -> None:
    for value in values:
        if type(value) is not int or not 0 <= value <= _LARGEST:
            raise ValueError("a number out of range")


def _texts(values: Iterable[object]) -> None:
    for value in values:
        if not isinstance(value, str):
            raise TypeError("a name that is no text")
