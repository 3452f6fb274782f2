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


@dataclass(frozen=True)
class Dealer:
    """Turns slots into parts of lines, for one set of pieces.

    ``nobody`` is the holder of each bucket that no pod is in.
    """

    pieces: Pieces
    kinds: KindPieces
    cells: Cells
    nobody: Ints

    def held(self, held: HeldSlots, holder: Ints) -> Parts:
        """Parts of pods; what is over-committed costs nothing, since capacity is paid for once."""
        board_ms, nano = self._deal(held)
        bucket = np.where(held.over, CODE_OF_BUCKET[Bucket.OVERCOMMITTED], CODE_OF_BUCKET[Bucket.HELD])
        nano = np.where(held.over, 0, nano)
        cell = self.cells.of_kind_piece[held.kind_piece]
        return Parts(cell, holder, bucket, board_ms, nano, held.start, held.end)

    def left_over(self, free: Leftovers) -> Parts:
        """Parts of nobody where there are stretches, summed per kind piece: they are many and short."""
        board_ms, nano = self._deal(free)
        at = free.kind_piece
        if not len(at):
            return self._of_nobody(at, free.bucket, board_ms, nano)
        runs = np.flatnonzero(np.append(True, at[1:] != at[:-1]))
        sums = np.add.reduceat(board_ms, runs), np.add.reduceat(nano, runs)
        return self._of_nobody(at[runs], free.bucket[runs], *sums)

    def rest(self, plain: Ints, held: Parts, at: Ints, bucket: Ints) -> Parts:
        """Parts of nobody on plain lines: capacity of their kind pieces less what was ``held`` ``at`` them.

        ``bucket`` is the bucket of every kind piece.
        """
        kinds, nothing = self.kinds, np.zeros(len(plain), np.int64)
        times = kinds.start_of(plain), kinds.end[plain]
        board_ms, nano = self._deal(
            HeldSlots(nothing, plain, *times, nothing, kinds.units[plain], nothing > 0)
        )
        taken_ms, taken_nano = np.zeros((2, len(kinds.key)), np.int64)
        np.add.at(taken_ms, at, held.board_ms)
        np.add.at(taken_nano, at, held.nano)
        board_ms, nano = board_ms - taken_ms[plain], nano - taken_nano[plain]
        free = np.flatnonzero(board_ms)
        return self._of_nobody(plain[free], bucket[plain[free]], board_ms[free], nano[free])

    def _of_nobody(self, at: Ints, bucket: Ints, board_ms: Ints, nano: Ints) -> Parts:
        """Nobody has no first and last instant: the times are those of the kind piece."""
        cell, times = self.cells.of_kind_piece[at], (self.kinds.start_of(at), self.kinds.end[at])
        return Parts(cell, self.nobody[bucket], bucket, board_ms, nano, *times)

    def _deal(self, slots: HeldSlots | Leftovers) -> tuple[Ints, Ints]:
        rates = [*(rate.nano_per_board_hour for rate in self.pieces.rates), 0]
        price_of = np.array(rates, dtype=np.int64)[self.pieces.rate[self.kinds.piece]]
        den, price = self.kinds.den[slots.kind_piece], price_of[slots.kind_piece]
        where = (slots.start, slots.end, slots.slot_from, slots.slot_to, den)
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
