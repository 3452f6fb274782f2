"""What attribution returns: usage lines in normal form, and what they refer to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from gpucost.attribution.holders import Holders
from gpucost.attribution.sweep import BUCKETS
from gpucost.contract.frames import LINE_MEASURES, USAGE_LINES
from gpucost.domain.holders import Bucket
from gpucost.domain.problems import Problem
from gpucost.domain.rates import Rate
from gpucost.domain.time import Window

UNIT_NAMES = [
    "cluster",
    "node",
    "resource",
    "model",
    "profile",
    "share_num",
    "share_den",
    "basis",
    "instance_type",
    "capacity_type",
    "region",
    "zone",
    "pool",
]


@dataclass(frozen=True)
class Attribution:
    """Usage lines of consecutive windows.

    ``lines``: window, unit, holder, rate (-1: no price) and bucket as positions, and the LINE_MEASURES;
    one row per natural key. Positions refer to ``windows``, ``units``, ``holders.frame`` and ``rates``.
    ``located`` is what could not be computed, or only in part: (window, problem); what the source says of the
    whole time stands with the first window.
    """

    windows: tuple[Window, ...]
    lines: pd.DataFrame
    units: pd.DataFrame
    holders: Holders
    rates: tuple[Rate, ...]
    located: tuple[tuple[int, Problem], ...]

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Every problem once, the board time of all windows added."""
        touched: dict[Problem, int | None] = {}
        for _, problem in self.located:
            whole = replace(problem, board_ms=None)
            before = touched.get(whole)
            touched[whole] = before if problem.board_ms is None else (before or 0) + problem.board_ms
        return tuple(replace(problem, board_ms=ms) for problem, ms in sorted(touched.items(), key=repr))

    def problems_by_window(self) -> tuple[tuple[Problem, ...], ...]:
        """The problems of each window."""
        found: list[list[Problem]] = [[] for _ in self.windows]
        for at, problem in self.located:
            found[at].append(problem)
        return tuple(map(tuple, found))

    def flat(self) -> pd.DataFrame:
        """The lines as a frame of USAGE_LINES: every position replaced by what it stands for."""
        lines = self.lines
        rate_ids = [*(rate.rate_id for rate in self.rates), ""]
        looked_up: dict[str, pd.Series[Any]] = {
            "window_start_ms": pd.Series([w.start_ms for w in self.windows], dtype="int64"),
            "window_end_ms": pd.Series([w.end_ms for w in self.windows], dtype="int64"),
            "bucket": pd.Series([bucket.value for bucket in BUCKETS], dtype="str"),
            "rate_id": pd.Series(rate_ids, dtype="str"),
        }
        position = {"bucket": lines["bucket"], "rate_id": lines["rate"] % len(rate_ids)}
        columns = {
            name: values.take(position.get(name, lines["window"]).to_numpy()).reset_index(drop=True)
            for name, values in looked_up.items()
        }
        for frame, at in ((self.units, lines["unit"]), (self.holders.frame, lines["holder"])):
            taken = frame.take(at.to_numpy()).reset_index(drop=True)
            columns.update({str(name): taken[name] for name in taken.columns})
        columns.update({name: lines[name].reset_index(drop=True) for name in LINE_MEASURES})
        return pd.DataFrame({name: columns[name] for name in USAGE_LINES.column_names})

    def totals(self) -> dict[Bucket, tuple[int, int]]:
        """Per bucket: (board milliseconds, nano-units of what has a price)."""
        sums = self.lines.groupby("bucket")[["board_ms", "nano"]].sum()
        return {
            BUCKETS[int(str(code))]: (int(row["board_ms"]), int(row["nano"])) for code, row in sums.iterrows()
        }
