"""Sums over windows whose waste is final, for somebody who adds them up as they come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, select

from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import Window
from gpucost.domain.waste import Waste
from gpucost.ledger.tables import LEDGER_WINDOW
from gpucost.ledger.tables_waste import WASTE_WINDOW
from gpucost.ledger.waste import FINAL, summed

W, A = LEDGER_WINDOW.c, WASTE_WINDOW.c


@dataclass(frozen=True, slots=True)
class FinalWaste:
    """Board milliseconds by team and bucket over windows with final waste, which ``starts`` (ms) name.

    ``complete`` says that there are no others.
    """

    starts: tuple[int, ...]
    board_ms: Mapping[tuple[str, Waste], int]
    complete: bool


def final_waste(connection: Connection, cluster: str, known: Collection[int], most: int) -> FinalWaste:
    """See Ledger.final_waste."""
    statement = (
        select(W.start_ms, W.end_ms)
        .join(WASTE_WINDOW, (A.window_id == W.id) & (A.version == W.version))
        .where(W.cluster == cluster, A.state == FINAL)
        .order_by(W.start_ms)
    )
    fresh = [Window(*row) for row in connection.execute(statement) if row.start_ms not in known]
    taken = fresh[:most]
    sums: Counter[tuple[str, Waste]] = Counter()
    for run in runs(taken):
        # A run may lie in a part of a folded day: what the day holds counts with its first window.
        frame = summed(connection, EVERYTHING, run, ["team"], {"cluster": [cluster]}, None)
        for team, bucket, board_ms in zip(frame["team"], frame["waste"], frame["board_ms"], strict=True):
            sums[team, Waste(bucket)] += int(board_ms)
    return FinalWaste(tuple(window.start_ms for window in taken), dict(sums), len(taken) == len(fresh))


def runs(windows: Sequence[Window]) -> list[Window]:
    """Windows that follow each other without a gap, as one: to sum them takes one query."""
    found: list[Window] = []
    for window in windows:
        if found and found[-1].end_ms == window.start_ms:
            found[-1] = Window(found[-1].start_ms, window.end_ms)
        else:
            found.append(window)
    return found
