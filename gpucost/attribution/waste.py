"""The waste ledger: every usage line divided among its buckets, to the millisecond and the nano-unit.

Detectors say which stretches of held or free time were wasted (WASTE_PIECES). Here they are applied to the
lines: a line's parts are whole milliseconds and nano-units that add up to the line, whatever the pieces say.
What no piece claims is the line's rest (domain.buckets.WASTE_WHEN_UNCLAIMED), except for held time that was
not observed: that is unknown. What counts is what detectors could observe, GPU by GPU and step by step
(frames.ACTIVITY): an hourly sum cannot tell idle from busy time. Observation is taken to be spread evenly
over the time that was neither idle nor oversized, since those two are known only where the time was observed.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpucost.attribution.apportion import Ints
from gpucost.attribution.sweep import CODE_OF_BUCKET, expand
from gpucost.attribution.usage_lines import Attribution
from gpucost.domain.buckets import (
    HOLDER_OF_BUCKET,
    ORDER,
    Bucket,
    Waste,
)

Floats: TypeAlias = npt.NDArray[np.float64]
_WASTES = tuple(Waste)
_DIVIDED = (Bucket.HELD, Bucket.UNALLOCATED)
_SEEN_TO_BE_KNOWN = (ORDER[Waste.IDLE], ORDER[Waste.OVERSIZED])


def waste_parts(
    attribution: Attribution, pieces: pd.DataFrame, activity: pd.DataFrame, *, demand_known: bool = True
) -> pd.DataFrame:
    """The parts of lines that are not their line's rest: ``line`` (position in ``attribution.lines``),
    ``waste`` (text), ``board_ms`` and ``nano`` (null where the line has no price). Every part is above 0;
    those of a line add up to at most the line. Unless ``demand_known``, free time cannot be said to be
    without demand: it is unknown then.
    """
    lines = attribution.lines.reset_index(drop=True)
    divided = lines[lines["bucket"].isin([CODE_OF_BUCKET[bucket] for bucket in _DIVIDED])]
    claimed = _claimed(attribution, divided, pieces)
    held = divided[divided["bucket"] == CODE_OF_BUCKET[Bucket.HELD]]
    unobserved = _unobserved(held, _seen(attribution, held, activity), claimed)
    free = divided.drop(held.index) if not demand_known else divided.iloc[:0]
    parts = pd.concat([claimed, unobserved, _unclaimed(free, claimed)], ignore_index=True)
    parts = parts.loc[parts["board_ms"] > 0].sort_values(["line", "rank"], ignore_index=True)
    nano = _nano(lines, parts)
    waste = pd.Series([_WASTES[rank].value for rank in parts["rank"]], dtype="str")
    return pd.DataFrame({"line": parts["line"], "waste": waste, "board_ms": parts["board_ms"], "nano": nano})


def _unclaimed(lines: pd.DataFrame, claimed: pd.DataFrame) -> pd.DataFrame:
    """The part of ``lines`` that no piece claims, as unknown."""
    taken = claimed.groupby("line")["board_ms"].sum().reindex(lines.index, fill_value=0)
    left = lines["board_ms"].to_numpy(np.int64) - taken.to_numpy(np.int64)
    rank = np.full(len(lines), ORDER[Waste.UNKNOWN], dtype=np.int64)
    return pd.DataFrame({"line": lines.index.to_numpy(np.int64), "rank": rank, "board_ms": left})


def _claimed(attribution: Attribution, divided: pd.DataFrame, pieces: pd.DataFrame) -> pd.DataFrame:
    """Whole milliseconds that pieces claim of lines: line, rank (of the bucket) and board_ms."""
    keyed = pd.DataFrame(
        {
            "line": divided.index.to_numpy(np.int64),
            "window": divided["window"].to_numpy(np.int64),
            "node": attribution.units["node"].to_numpy()[divided["unit"].to_numpy()],
            "resource": attribution.units["resource"].to_numpy()[divided["unit"].to_numpy()],
            "pod_uid": attribution.holders.frame["pod_uid"].to_numpy()[divided["holder"].to_numpy()],
            "first": divided["first_ms"].to_numpy(np.int64),
            "last": divided["last_ms"].to_numpy(np.int64),
            "board_ms": divided["board_ms"].to_numpy(np.float64),
        }
    )
    joined = _by_window(attribution, pieces).merge(keyed, on=["window", "node", "resource", "pod_uid"])
    until = joined[["end", "last"]].min(axis=1)
    overlap = (until - joined[["start", "first"]].max(axis=1)).clip(lower=0)
    # Lines of one pod whose labels changed back and forth overlap in time, and so do those of jobs that an
    # inner scheduler ran in it: a piece is shared by them, by their GPU time.
    length, of_piece = joined["end"] - joined["start"], joined["piece"]
    by_piece = overlap.groupby(of_piece).transform("sum")
    shared = by_piece > length
    weight = overlap * joined["board_ms"] / (joined["last"] - joined["first"]).clip(lower=1)
    by_weight = weight.groupby(of_piece).transform("sum")
    part = length * weight / by_weight.where(by_weight > 0, 1)
    joined["claim"] = joined["boards"] * overlap.where(~shared, part)
    claims: pd.DataFrame = joined.groupby(["line", "rank"], as_index=False)[["claim"]].sum()
    claims = claims.sort_values(["line", "rank"], ignore_index=True)
    whole = divided["board_ms"].reindex(claims["line"]).to_numpy(np.float64)
    # Rounded sums, not sums of rounded parts: a line's parts never exceed the line.
    reached = claims.groupby("line")["claim"].cumsum().round().to_numpy(np.float64)
    reached = np.minimum(reached, whole)
    first = ~claims["line"].duplicated().to_numpy()
    before = np.where(first, 0.0, np.append(0.0, reached[:-1])[: len(reached)])
    parts = {"line": claims["line"], "rank": claims["rank"], "board_ms": (reached - before).astype(np.int64)}
    return pd.DataFrame(parts)


def _by_window(attribution: Attribution, pieces: pd.DataFrame) -> pd.DataFrame:
    """Pieces cut at the windows' edges; those of missing units are no part of what is divided."""
    edges = _edges(attribution)
    inside = pieces[
        (pieces["start_ms"] < edges[-1])
        & (pieces["end_ms"] > edges[0])
        & (pieces["pod_uid"] != HOLDER_OF_BUCKET[Bucket.UNAVAILABLE])
    ].reset_index(drop=True)
    start, end = inside["start_ms"].to_numpy(np.int64), inside["end_ms"].to_numpy(np.int64)
    row, window, _ = _spread(edges, inside)
    cut: dict[str, Any] = {
        name: inside[name].astype("str").to_numpy()[row] for name in ("node", "resource", "pod_uid")
    }
    return pd.DataFrame(
        {
            **cut,
            "piece": np.arange(len(row)),
            "window": window,
            "start": np.maximum(start[row], edges[window]),
            "end": np.minimum(end[row], edges[window + 1]),
            "boards": inside["boards"].to_numpy(np.float64)[row],
            "rank": inside["waste"].map({waste.value: rank for waste, rank in ORDER.items()}).to_numpy()[row],
        }
    ).astype({"node": "str", "resource": "str", "pod_uid": "str", "rank": "int64"})


def _seen(attribution: Attribution, held: pd.DataFrame, activity: pd.DataFrame) -> Floats:
    """GPU milliseconds of each held line for which its GPUs were observed."""
    rows = activity[["node", "pod_uid", "start_ms", "end_ms"]].assign(
        seen=activity[["observed_ms", "sm_observed_ms"]].max(axis=1)
    )
    rows = rows[(rows["seen"] > 0) & (rows["start_ms"] < rows["end_ms"])]
    row, window, part = _spread(_edges(attribution), rows)
    spread = rows.iloc[row][["node", "pod_uid"]].reset_index(drop=True)
    spread["window"], spread["seen"] = window, rows["seen"].to_numpy(np.float64)[row] * part
    key = ["window", "node", "pod_uid"]
    sums = spread.groupby(key, observed=True)["seen"].sum().reset_index()
    lines = pd.DataFrame(
        {
            "window": held["window"].to_numpy(np.int64),
            "node": attribution.units["node"].to_numpy()[held["unit"].to_numpy()],
            "pod_uid": attribution.holders.frame["pod_uid"].to_numpy()[held["holder"].to_numpy()],
            "board": held["board_ms"].to_numpy(np.float64),
        }
    ).astype({"node": "str", "pod_uid": "str"})
    found = lines.merge(sums.astype({"node": "str", "pod_uid": "str"}), how="left", on=key)
    whole = lines.groupby(key)["board"].transform("sum").to_numpy(np.float64)
    board = lines["board"].to_numpy(np.float64)
    seen: Floats = np.minimum(found["seen"].fillna(0).to_numpy(np.float64) * board / whole, board)
    return seen


def _edges(attribution: Attribution) -> Ints:
    starts = [window.start_ms for window in attribution.windows]
    return np.array([*starts, attribution.windows[-1].end_ms], dtype=np.int64)


def _spread(edges: Ints, rows: pd.DataFrame) -> tuple[Ints, Ints, Floats]:
    """Rows cut at the windows' edges: (position of the row, window, part of the row's time), parallel."""
    start, end = rows["start_ms"].to_numpy(np.int64), rows["end_ms"].to_numpy(np.int64)
    first = np.maximum(np.searchsorted(edges, start, "right") - 1, 0)
    last = np.minimum(np.searchsorted(edges, end, "left"), len(edges) - 1)
    count = np.maximum(last - first, 0).astype(np.int64)
    row = np.repeat(np.arange(len(rows), dtype=np.int64), count)
    window = expand(first.astype(np.int64), count)
    overlap = np.minimum(end[row], edges[window + 1]) - np.maximum(start[row], edges[window])
    return row, window, np.maximum(overlap, 0) / (end - start)[row]


def _unobserved(held: pd.DataFrame, seen: Floats, parts: pd.DataFrame) -> pd.DataFrame:
    """The part of held lines' rest that was not observed."""
    at = held.index
    board = held["board_ms"].to_numpy(np.float64)
    claimed = parts.groupby("line")["board_ms"].sum().reindex(at, fill_value=0).to_numpy(np.float64)
    of_seen = parts[parts["rank"].isin(_SEEN_TO_BE_KNOWN)]
    used_up = of_seen.groupby("line")["board_ms"].sum().reindex(at, fill_value=0).to_numpy(np.float64)
    rest, others = board - claimed, board - used_up
    known = np.divide(seen - used_up, others, out=np.zeros_like(others), where=others > 0).clip(0, 1)
    unknown = np.round(rest * (1 - known)).astype(np.int64)
    return pd.DataFrame({"line": at.to_numpy(np.int64), "rank": ORDER[Waste.UNKNOWN], "board_ms": unknown})


def _nano(lines: pd.DataFrame, parts: pd.DataFrame) -> pd.Series[int]:
    """Money in proportion to time, rounded sum by rounded sum, in whole numbers of any size."""
    found: list[int | None] = []
    last, reached = -1, 0
    board, nano = lines["board_ms"].tolist(), lines["nano"].astype("object").tolist()
    for line, part in zip(parts["line"].tolist(), parts["board_ms"].tolist(), strict=True):
        before = reached if line == last else 0
        last, reached = line, before + part
        whole, of = nano[line], board[line]
        found.append(None if whole is pd.NA else whole * reached // of - whole * before // of)
    return pd.Series(found, dtype="Int64")
