"""From slots held and slots left over to usage lines: dealing, pricing, and one row per natural key."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from gpucost.attribution.deal import Ints, deal_ms, deal_nano
from gpucost.attribution.held import HeldSlots
from gpucost.attribution.pieces import Pieces
from gpucost.attribution.sweep import CODE_OF_BUCKET, KindPieces, Leftovers
from gpucost.domain.holders import Bucket


@dataclass(frozen=True)
class Parts:
    """Parts of lines, parallel arrays: ``cell`` stands for (window, unit, rate), see Cells."""

    cell: Ints
    holder: Ints
    bucket: Ints
    board_ms: Ints
    nano: Ints
    first_ms: Ints
    last_ms: Ints

    def __add__(self, other: Parts) -> Parts:
        return Parts(
            *(np.concatenate([mine, its]) for mine, its in zip(self.arrays, other.arrays, strict=True))
        )

    @property
    def arrays(self) -> tuple[Ints, ...]:
        numbers = (self.board_ms, self.nano, self.first_ms, self.last_ms)
        return (self.cell, self.holder, self.bucket, *numbers)


class Cells:
    """Numbers the distinct (window, unit, rate) of all kind pieces; ``of_kind_piece`` says which is whose."""

    def __init__(self, pieces: Pieces, kinds: KindPieces, unit_of: Ints) -> None:
        triple = [pieces.window[kinds.piece], unit_of, pieces.rate[kinds.piece]]
        order = np.lexsort(triple[::-1])
        ordered = np.stack([column[order] for column in triple]) if len(order) else np.zeros((3, 0), np.int64)
        new = np.append(True, (ordered[:, 1:] != ordered[:, :-1]).any(axis=0))[: len(order)]
        self.of_kind_piece = np.empty(len(order), np.int64)
        self.of_kind_piece[order] = np.cumsum(new) - 1
        self.window, self.unit, self.rate = ordered[:, new]


def held_parts(held: HeldSlots, holder: Ints, pieces: Pieces, kinds: KindPieces, cells: Cells) -> Parts:
    """Parts of holders; what is over-committed costs nothing, since capacity is paid for once."""
    board_ms, nano = _deal(held, pieces, kinds)
    bucket = np.where(held.over, CODE_OF_BUCKET[Bucket.OVERCOMMITTED], CODE_OF_BUCKET[Bucket.HELD])
    nano = np.where(held.over, 0, nano)
    cell = cells.of_kind_piece[held.kind_piece]
    return Parts(cell, holder, bucket, board_ms, nano, held.start, held.end)


def free_parts(
    free: Leftovers, holder_of_bucket: Ints, pieces: Pieces, kinds: KindPieces, cells: Cells
) -> Parts:
    """Parts of nobody, already summed per kind piece: leftovers are many and short."""
    board_ms, nano = _deal(free, pieces, kinds)
    at = free.kind_piece
    runs = np.flatnonzero(np.append(True, at[1:] != at[:-1])) if len(at) else np.zeros(0, np.int64)
    ends = np.append(runs[1:], len(at))[: len(runs)] - 1
    bucket = free.bucket[runs]
    return Parts(
        cells.of_kind_piece[at[runs]],
        holder_of_bucket[bucket],
        bucket,
        np.add.reduceat(board_ms, runs) if len(runs) else board_ms,
        np.add.reduceat(nano, runs) if len(runs) else nano,
        free.start[runs],
        free.end[ends],
    )


def _deal(slots: HeldSlots | Leftovers, pieces: Pieces, kinds: KindPieces) -> tuple[Ints, Ints]:
    price_of = np.array([*(rate.nano_per_board_hour for rate in pieces.rates), 0], dtype=np.int64)
    price = price_of[pieces.rate[kinds.piece]][slots.kind_piece]
    where = (slots.start, slots.end, slots.slot_from, slots.slot_to, kinds.den[slots.kind_piece])
    return deal_ms(*where), deal_nano(*where, price)


def sum_parts(parts: Parts, cells: Cells, holders: int) -> pd.DataFrame:
    """One row per (window, unit, holder, rate, bucket) with its measures; no price, no cost (null)."""
    key = (parts.cell * (holders + 1) + parts.holder) * len(Bucket) + parts.bucket
    order = np.argsort(key)
    key = key[order]
    first = np.flatnonzero(np.append(True, key[1:] != key[:-1])) if len(key) else order
    if len(first) < len(key):
        board_ms, nano = (np.add.reduceat(values[order], first) for values in (parts.board_ms, parts.nano))
        first_ms = np.minimum.reduceat(parts.first_ms[order], first)
        last_ms = np.maximum.reduceat(parts.last_ms[order], first)
    else:
        board_ms, nano = parts.board_ms[order], parts.nano[order]
        first_ms, last_ms = parts.first_ms[order], parts.last_ms[order]
    order = order[first]
    cell, bucket = parts.cell[order], parts.bucket[order]
    rate = cells.rate[cell]
    unpriced = (rate < 0) & (bucket != CODE_OF_BUCKET[Bucket.OVERCOMMITTED])
    return pd.DataFrame(
        {
            "window": cells.window[cell],
            "unit": cells.unit[cell],
            "holder": parts.holder[order],
            "rate": rate,
            "bucket": bucket,
            "board_ms": board_ms,
            "nano": pd.arrays.IntegerArray(nano, unpriced),
            "first_ms": first_ms,
            "last_ms": last_ms,
        }
    )
