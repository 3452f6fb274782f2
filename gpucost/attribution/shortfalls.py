"""What attribution could not compute, or only in part, told per window and with the board time it touches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from gpucost.attribution.conservation import difference
from gpucost.attribution.deal import Ints
from gpucost.attribution.frames import Frames
from gpucost.attribution.holders import Holders
from gpucost.attribution.pieces import Pieces
from gpucost.attribution.sweep import BUCKETS, CODE_OF_BUCKET
from gpucost.domain.holders import Bucket
from gpucost.domain.problems import Problem, ProblemCode
from gpucost.domain.rates import RateLookup
from gpucost.domain.time import Window

Located = tuple[int, Problem]


def overcommitted(lines: pd.DataFrame, units: pd.DataFrame, holders: Holders) -> list[Located]:
    """Units held beyond what a node has, per pod."""
    over = lines[lines["bucket"] == CODE_OF_BUCKET[Bucket.OVERCOMMITTED]]
    total = over.groupby(["window", "unit", "holder"], as_index=False)["board_ms"].sum()
    found = []
    for window, unit, holder, ms in total.to_numpy().tolist():
        place, who = units.iloc[unit], holders.frame.iloc[holder]
        detail = f"{who['namespace']}/{who['pod']} held {place['resource']} beyond what the node has"
        found.append(
            (window, Problem(ProblemCode.OVERCOMMITTED, place["cluster"], place["node"], detail, ms))
        )
    return found


def uncounted(held: pd.DataFrame, units: pd.DataFrame) -> list[Located]:
    """Time held where nothing says how many units there are: billed, but what was free cannot be known.

    ``held`` has window, unit and board_ms of that time.
    """
    found = []
    total = held.groupby(["window", "unit"], as_index=False)["board_ms"].sum()
    for window, unit, ms in total.to_numpy().tolist():
        place = units.iloc[unit]
        detail = f"count unknown: nothing says how many {place['resource']} the node had while pods held some"
        found.append(
            (window, Problem(ProblemCode.COUNT_UNKNOWN, place["cluster"], place["node"], detail, ms))
        )
    return found


def unshared(
    allocations: pd.DataFrame, attributed: Ints, pieces: Pieces, windows: Sequence[Window]
) -> list[Located]:
    """Pods whose units stand for nobody knows what share of a board: their time is on no line, so it is told.

    ``attributed`` are the rows of ``allocations`` that are on lines.
    """
    blind = {(p.cluster, p.subject) for _, p in pieces.problems if p.code is ProblemCode.UNIT_UNKNOWN}
    left_out = allocations[~np.isin(np.arange(len(allocations)), attributed)]
    found = []
    for row in left_out.to_dict("records"):
        if (row["cluster"], row["node"]) not in blind:
            continue
        for at, window in enumerate(windows):
            if held_ms := window.overlap_ms(row["start_ms"], row["end_ms"]):
                what = f"{row['count']} x {row['resource']} on {row['node']} for {held_ms} ms"
                detail = f"{row['namespace']}/{row['pod']} held {what}: share of a board unknown, not billed"
                found.append((at, Problem(ProblemCode.UNIT_UNKNOWN, row["cluster"], row["pod_uid"], detail)))
    return found


def not_conserved(
    lines: pd.DataFrame, units: pd.DataFrame, frames: Frames, scope: Window, rates: RateLookup
) -> list[Located]:
    """Every attribution proves itself: nodes whose lines are not what their boards and prices come to."""
    sums = lines.groupby(["unit", "bucket"])[["board_ms", "nano"]].sum().reset_index()
    names = pd.Series([bucket.value for bucket in BUCKETS], dtype="str")
    by_bucket = sums.assign(bucket=names.take(sums["bucket"].to_numpy()).to_numpy())
    by_bucket = by_bucket.join(units[["cluster", "node", "model"]], on="unit")
    found = difference(by_bucket, frames, scope, rates)
    detail = f"lines and capacity differ: {found.board_ms} board ms, {found.nano} nano-units in all"
    places = (key.partition("/") for key in found.nodes)
    return [(0, Problem(ProblemCode.NOT_CONSERVED, cluster, node, detail)) for cluster, _, node in places]


def unpriced(lines: pd.DataFrame, units: pd.DataFrame, pieces: Pieces) -> list[Located]:
    """Board time without a price, per model and instance type; never a default in its place."""
    capacity = lines["bucket"] != CODE_OF_BUCKET[Bucket.OVERCOMMITTED]
    part = lines.loc[(lines["rate"] < 0) & capacity, ["window", "unit", "board_ms"]]
    key = ["cluster", "model", "instance_type"]
    named = part.join(units[key], on="unit")
    found = []
    total = named.groupby(["window", *key])["board_ms"].sum().reset_index()
    for row in total.to_dict("records"):
        what = (row["cluster"], row["model"], row["instance_type"])
        reason = pieces.no_price.get(what, "nothing says what this node is, so no price can be looked up")
        subject = row["model"] or "unknown model"
        problem = Problem(ProblemCode.PRICE_MISSING, row["cluster"], subject, reason, row["board_ms"])
        found.append((row["window"], problem))
    return found
